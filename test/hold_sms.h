// SMs that are kept from other kernels, as transfers keep them (hold_sms.cu; bench_cuda).
#ifndef HOLD_SMS_H
#define HOLD_SMS_H

#include <stdbool.h>

// As NCCL's kernels inside a machine: high priority, all shared memory of an SM, 640 threads, asks memory of the device whether to go on.
// The others each differ in one thing, to find what costs other kernels how much; asking the host's memory is what NCCL does beside a
// network.
typedef enum { HOLD_AS_NCCL, HOLD_LOW_PRIORITY, HOLD_ASKS_HOST, HOLD_NO_SHARED, HOLD_ONE_WARP } hold_kind;

#ifdef __cplusplus
extern "C" {
#endif
// Ends what holds SMs, and then holds so many of them (at most 64; 0: none), on each a block. Returns the seconds until all were held.
double hold_sms(int sms, hold_kind kind);
// A transfer that is ready at the same moment as compute that takes all SMs, as a hop of a ring and the block of attention that is to hide
// it. hop_launch launches one of so many blocks, which end at once; compute that is issued next is behind it. first: compute waits for an
// event that the transfer's stream records just before the transfer. hop_waited starts both, and waits for them: seconds from that moment
// to the end of the transfer, and to that of the compute.
typedef struct {
    double hop, compute;
} hop_times;
void hop_launch(int sms, bool first);
hop_times hop_waited(void);
#ifdef __cplusplus
}
#endif
#endif
