// ranks: 1
// Progress of long work: no line for short work, lines that get rarer with time, and what they say.
#include "../progress.h"
#include "test.h"

static char said[256]; // by the last call

static bool says(progress_note *p, int64_t done, int64_t total) {
    FILE *terminal = stderr;
    stderr = tmpfile();
    progress_show(p, done, total);
    rewind(stderr);
    bool line = fgets(said, sizeof said, stderr) != NULL;
    fclose(stderr);
    stderr = terminal;
    return line;
}

int main(void) {
    progress_note p = progress_start("work");
    CHECK(!says(&p, 1, 4), "short work prints %s", said);
    p.began -= 9;
    p.next -= 9;
    CHECK(!says(&p, 1, 4), "work of 9 s prints %s", said);
    p.began -= 3591;
    p.next = device_seconds();
    CHECK(says(&p, 1, 4), "an hour's work prints nothing");
    CHECK(strcmp(said, "note: work: 25 % after 1:00:00, 3:00:00 to go\n") == 0, "a quarter: %s", said);
    CHECK(fabs(p.next - device_seconds() - 360) < 5, "after an hour the next line comes in %g s", p.next - device_seconds());
    CHECK(!says(&p, 2, 4), "a line too early: %s", said);
    p.next = device_seconds();
    CHECK(!says(&p, 4, 4), "finished work prints %s", said);
    CHECK(says(&p, 0, 0) && strcmp(said, "note: work: 1:00:00 so far\n") == 0, "parts not known: %s", said);
    p.began = device_seconds() - 30;
    p.next = device_seconds();
    CHECK(says(&p, 0, 4) && strcmp(said, "note: work: 0:00:30 so far\n") == 0, "nothing done: %s", said);
    CHECK(fabs(p.next - device_seconds() - PROGRESS_SECONDS) < 5,
          "after half a minute the next line comes in %g s", p.next - device_seconds());
    return test_finish("test_progress", NULL);
}
