#!/usr/bin/env python3
"""Translates PTX, to which nvcc compiles our kernels, into C++ that runs on the emulation's threads (device/cuda/emulation.h, test/ptx.h).

    test/ptx_to_cc.py KERNELS.ptx > KERNELS.cc

Every instruction becomes one statement with the meaning and types that the PTX ISA gives it; registers become variables, branches goto.
Nothing is guessed: an instruction that is not known below is an error with its text. So what runs is what nvcc made of the kernels: its
optimisations, its choice of instructions, and the inline assembly in emulation.h that g++ never sees. Only ptxas is left out.
"""
import re
import sys

TYPES = {'pred': 'bool', 'f32': 'float', 'f64': 'double',
         **{f'{k}{n}': f'{"" if k == "s" else "u"}int{n}_t' for k in 'sub' for n in (8, 16, 32, 64)}}
SPECIAL = {'%tid': 'm.current->where', '%ctaid': 'm.block_index', '%ntid': 'm.block', '%nctaid': 'm.grid'}
ORDERED = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>=', 'lo': '<', 'ls': '<=', 'hi': '>', 'hs': '>=', 'neu': '!='}
UNORDERED = {'ltu': 'ge', 'leu': 'gt', 'gtu': 'le', 'geu': 'lt'}  # !(the opposite), which is true with a NaN
# name: the result, from a, b, c of type T. Integers wrap (-fwrapv). Approximate instructions become the host's more exact functions.
VALUES = {
    'add': 'T(a + b)', 'sub': 'T(a - b)', 'mul': 'T(a * b)', 'add.rn': 'T(a + b)', 'sub.rn': 'T(a - b)', 'mul.rn': 'T(a * b)',
    'mul.lo': 'T(a * b)', 'mad.lo': 'T(a * b + c)', 'mul.hi': 'high(a, b)', 'fma.rn': 'std::fma(a, b, c)', 'fma.rm': 'fma_down(a, b, c)',
    'div': 'T(a / b)', 'div.rn': 'a / b', 'rem': 'T(a % b)', 'neg': 'T(-a)', 'abs': 'std::abs(a)', 'min': 'least(a, b)',
    'max': 'most(a, b)', 'not': 'inverse(a)', 'and': 'T(a & b)', 'or': 'T(a | b)', 'xor': 'T(a ^ b)', 'rcp.rn': '1 / a',
    'rcp.approx.ftz': 'rcp_rough(a)', 'sqrt.rn': 'std::sqrt(a)', 'rsqrt.approx': '1 / std::sqrt(a)', 'ex2.approx': 'exp2f(a)',
    'ex2.approx.ftz': 'normal(exp2f(normal(a)))', 'mov': 'a',
    'add.cc': 'add_carry(a, b, 0, carry)', 'addc.cc': 'add_carry(a, b, carry, carry)', 'addc': 'T(a + b + carry)',
    'sub.cc': 'sub_borrow(a, b, 0, carry)', 'subc.cc': 'sub_borrow(a, b, carry, carry)', 'subc': 'T(a - b - carry)',
    'mad.lo.cc': 'add_carry(T(a * b), c, 0, carry)', 'madc.lo.cc': 'add_carry(T(a * b), c, carry, carry)',
    'madc.hi.cc': 'add_carry(high(a, b), c, carry, carry)', 'madc.hi': 'T(high(a, b) + c + carry)',
}


def operands(text):
    """Splits 'a, {b, c}, [d+4], (e, f)' at its outer commas."""
    return [part.strip() for part in re.findall(r'(?:\{[^}]*\}|\([^)]*\)|\[[^]]*\]|[^,{(\[])+', text) if part.strip()]


def source(text):
    """An operand that is read: a register, a number, a name."""
    if match := re.fullmatch(r'(%\w+)\.([xyz])', text):
        return f'{SPECIAL[match[1]]}.{match[2]}'
    if match := re.fullmatch(r'0[fF]([0-9A-Fa-f]{8})', text):
        return f'as<float>(0x{match[1]}u)'
    if match := re.fullmatch(r'0[dD]([0-9A-Fa-f]{16})', text):
        return f'as<double>(0x{match[1]}ull)'
    if re.fullmatch(r'-?(0x[0-9A-Fa-f]+|\d+)U?', text):
        return f'int64_t({text.rstrip("U")}ull)' if not text.startswith('-') else f'int64_t({text})'
    if re.fullmatch(r'[%$\w]+', text):
        return name(text)
    raise ValueError(f'operand {text}')


def name(text):
    return text.replace('%', '').replace('$', '')


def group(text):
    """'{a, b}' -> [a, b]; 'a' -> [a]"""
    return [part.strip() for part in text.strip('{}').split(',')]


def address(text, space, size):
    """'[base+offset]' -> the host's address of `size` bytes there."""
    base, _, offset = text.strip('[]').partition('+')
    bits = 32 if space == 'shared' else 64
    at = f'as<uint{bits}_t>({source(base)}){" + int" + str(bits) + "_t(" + offset + ")" if offset else ""}'
    checked = {'shared': f'shared_at({at}, {size})', 'global': f'global_at({at})'}
    return f'aligned({checked.get(space, at)}, {size})'


def converted(op, a):
    """cvt.rounding.to.from"""
    *how, to, from_ = op
    if (how, to, from_) == (['rn'], 'bf16', 'f32'):
        return f'to_bf16({a})'
    if to in ('f32', 'f64') and from_ in ('f32', 'f64') and how in ([], ['rn']):
        return f'{TYPES[to]}({a})'
    if how == ['sat'] and to == from_ == 'f32':
        return f'saturated({a})'
    if to[0] in 'su' and from_[0] in 'su' and not how:
        return f'{TYPES[to]}({a})'
    if to[0] == 'f' and from_[0] in 'su' and how == ['rn']:
        return f'{TYPES[to]}({a})'
    if to == 's32' and from_[0] == 'f' and how == ['rni']:
        return f'int32_t(std::rint({a}))'
    raise ValueError('cvt')


def statement(text):
    """One instruction without its guard and semicolon -> C++."""
    code, _, rest = text.partition(' ')
    op, args = code.split('.'), operands(rest)
    main, type_ = op[0], op[-1]
    T = TYPES.get(type_)
    if code in ('ret', 'exit'):
        return 'return;'
    if main == 'bra':
        return f'goto {name(args[0])};'
    if code == 'bar.sync' and args == ['0']:
        return 'block_barrier(__LINE__);'
    if code == 'bar.warp.sync' and args == ['-1']:
        return 'warp_barrier("__syncwarp", true);'
    if code == 'cp.async.wait_all':
        return 'copy_async_wait();'
    if code == 'cp.async.commit_group':
        return 'copy_async_group();'
    if code == 'cp.async.wait_group':
        return f'copy_async_wait_but({args[0]});'
    if code in ('cp.async.cg.shared.global', 'cp.async.ca.shared.global'):
        return f'copy_async((void *){address(args[0], "shared", args[2])}, (const void *){address(args[1], "global", args[2])}, {args[2]});'
    if code == 'prefetch.global.L2':
        return f'touched({address(args[0], "global", 1)});'
    if code == 'call.uni':
        result, function, parameters = args
        return f'{function}({", ".join(group(result.strip("()")) + group(parameters.strip("()")))});'
    if main in ('ld', 'st'):
        space = op[2 if op[1] == 'volatile' else 1]
        count = next((int(part[1]) for part in op if part in ('v2', 'v4')), 1)
        if space not in ('global', 'shared', 'local', 'param') or set(op[2:-1]) - {'nc', 'v2', 'v4'}:
            raise ValueError(text)
        there, here = (args[1], args[0]) if main == 'ld' else (args[0], args[1])
        moves = [(f'put({name(r)}, p[{i}]);' if main == 'ld' else f'p[{i}] = as<T>({source(r)});') for i, r in enumerate(group(here))]
        if len(moves) != count:
            raise ValueError(text)
        return f'{{ typedef {T} T; T *p = (T *){address(there, space, f"{count} * sizeof(T)")}; {" ".join(moves)} }}'
    if main == 'cvta':
        to = op[1] == 'to'
        if op[2 if to else 1] != 'shared':
            return f'{name(args[0])} = {source(args[1])};'
        return f'{name(args[0])} = {"to_shared" if to else "from_shared"}({source(args[1])});'
    if code == 'shfl.sync.bfly.b32':
        to, valid = args[0].split('|')
        value, *how = (f'as<uint32_t>({source(arg)})' for arg in args[1:])
        return f'put({name(to)}, shuffle_xor({value}, {", ".join(how)})); {name(valid)} = true;'
    if re.fullmatch(r'ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared\.b16', code):
        results = ' '.join(f'{name(r)} = d[{i}];' for i, r in enumerate(group(args[0])))
        at, transposed = address(args[1], 'shared', 16), 'true' if 'trans' in op else 'false'
        return f'{{ uint32_t d[4]; load_matrices(d, (const void *){at}, {transposed}, __LINE__); {results} }}'
    if code == 'mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32':
        d, a, b, c = (group(arg) for arg in args)
        results = ' '.join(f'put({name(r)}, d[{i}]);' for i, r in enumerate(d))
        return (f'{{ float d[4] = {{{", ".join(f"as<float>({source(r)})" for r in c)}}}; uint32_t a[4] = {{{", ".join(map(source, a))}}}; '
                f'multiply_add(d, a, {source(b[0])}, {source(b[1])}, __LINE__); {results} }}')
    if code == 'cvt.rn.bf16x2.f32':  # the first operand goes to the upper half
        return f'{name(args[0])} = uint32_t(to_bf16({float_of(args[1])})) << 16 | to_bf16({float_of(args[2])});'
    if main == 'cvt':
        from_ = TYPES[type_]
        return f'put({name(args[0])}, {converted(op[1:], f"as<{from_}>({source(args[1])})")});'
    if main == 'mov' and args[0][0] == '{':  # {low, high} = a
        parts = group(args[0])
        width = int(type_[1:]) // len(parts)
        results = ' '.join(f'put({name(r)}, uint{width}_t(a >> {width * i}));' for i, r in enumerate(parts))
        return f'{{ {T} a = as<{T}>({source(args[1])}); {results} }}'
    if main == 'mov' and args[1][0] == '{':
        parts = group(args[1])
        width = int(type_[1:]) // len(parts)
        whole = ' | '.join(f'{T}(as<uint{width}_t>({source(r)})) << {width * i}' for i, r in enumerate(parts))
        return f'put({name(args[0])}, {T}({whole}));'
    typed = [f'as<{T}>({source(arg)})' for arg in args[1:]]
    to = name(args[0])
    if main == 'setp' and len(op) == 3:
        compare, (a, b) = op[1], typed
        if compare == 'equ' or compare == 'ne' and type_[0] == 'f':  # with a NaN, equ is true and ne is false
            return f'{to} = {"!" if compare == "equ" else ""}differ({a}, {b});'
        value = f'!({a} {ORDERED[UNORDERED[compare]]} {b})' if compare in UNORDERED else f'{a} {ORDERED[compare]} {b}'
        return f'{to} = {value};'
    if main == 'selp':
        return f'put({to}, {source(args[3])} ? {typed[0]} : {typed[1]});'
    if main in ('shl', 'shr') and len(op) == 2:
        return f'put({to}, {"left" if main == "shl" else "right"}({typed[0]}, as<uint32_t>({source(args[2])})));'
    if code == 'shf.l.wrap.b32':
        return f'{to} = uint32_t((uint64_t({source(args[2])}) << 32 | {source(args[1])}) << ({source(args[3])} & 31) >> 32);'
    if code == 'clz.b64':
        return f'{to} = {typed[0]} == 0 ? 64 : __builtin_clzll({typed[0]});'
    if main == 'bfi':
        return f'put({to}, insert({typed[0]}, {typed[1]}, {source(args[3])}, {source(args[4])}));'
    if main == 'mul' and op[1] == 'wide':
        wide = TYPES[type_[0] + str(2 * int(type_[1:]))]
        return f'put({to}, {wide}({wide}({typed[0]}) * {wide}({typed[1]})));'
    if T and '.'.join(op[:-1]) in VALUES:
        letters = ''.join(f'{T} {letter} = {value}; ' for letter, value in zip('abc', typed))
        return f'{{ typedef {T} T; {letters}put({to}, T({VALUES[".".join(op[:-1])]})); }}'
    raise ValueError(text)


def float_of(text):
    return f'as<float>({source(text)})'


def declaration(text):
    """A directive in a function: .reg, .param, .local, .loc or .pragma."""
    words = text.split()
    if words[0] == '.reg':
        T = TYPES[words[1][1:]]
        names = []
        for item in ' '.join(words[2:]).split(','):
            if match := re.fullmatch(r'(%\w+)<(\d+)>', item.strip()):
                names += [f'{name(match[1])}{i}' for i in range(int(match[2]))]
            else:
                names.append(name(item.strip()))
        return f'{T} {", ".join(names)};'
    if words[0] in ('.param', '.local'):
        match = re.search(r'(?:\.align (\d+) )?\.[bsuf](\d+)\s+([\w$]+)(?:\[(\d+)\])?$', text)
        return f'alignas({match[1] or 8}) unsigned char {name(match[3])}[{match[4] or int(match[2]) // 8}];'
    if words[0] in ('.loc', '.pragma'):
        return ''
    raise ValueError(text)


def body(text):
    """The statements between a function's braces."""
    at = 0
    while piece := re.compile(r'\s*([{}]|[$\w]+:|[^;]+;)').match(text, at):
        at, piece = piece.end(), ' '.join(piece[1].split())
        if piece in ('{', '}'):
            yield piece
        elif piece.endswith(':'):
            yield f'{name(piece[:-1])}:;'
        elif piece.startswith('.'):
            yield declaration(piece.rstrip(';'))
        else:
            match = re.fullmatch(r'(?:@(!?)(%\w+) )?(.*);', piece)
            code = statement(match[3].strip())
            yield f'if ({match[1]}{name(match[2])}) {{ {code} }}' if match[2] else code
    if text[at:].strip():
        raise ValueError(text[at:])


def main(path):
    text = re.sub(r'//[^\n]*|\n\s*\.(loc|pragma|file|section)\b[^\n]*', '', open(path).read())
    print('#include "ptx.h"\nnamespace emulation {')
    for align, symbol, count, values in re.findall(r'\.global \.align (\d+) \.b8 (\w+)\[(\d+)\] = \{([^}]*)\};', text):
        print(f'alignas({align}) static const unsigned char {symbol}[{count}] = {{{values}}};')
    if 'dynamic_shared_memory[]' in text:
        print('constexpr uint64_t dynamic_shared_memory = 0; // the one array of a block is where its shared memory starts')
    functions = []
    for kind, result, symbol, parameters, limits, code in re.findall(
            r'\.(entry|func)\s+(\([^)]*\)\s+)?(\w+)\s*\(([^)]*)\)([^{;]*)\{(.*?)^\}', text, re.DOTALL | re.MULTILINE):
        names = re.findall(r'(\w+)(?:\[\d+\])?\s*(?:,|$)', parameters.strip())
        if kind == 'func':
            results = re.findall(r'(\w+)\[\d+\]', result)
            print(f'static void {symbol}({", ".join("unsigned char *" + n for n in results + names)});')
            functions.append((f'{symbol}({", ".join("unsigned char *" + n for n in results + names)})', '', code))
        else:
            threads = re.search(r'\.maxntid (\d+)', limits)
            functions.append((f'{symbol}(void **arguments)', ''.join(f'void *{n} = arguments[{i}];\n' for i, n in enumerate(names)), code))
            print(f'static void {symbol}(void **arguments);\n'
                  f'static ptx_kernel kernel{len(functions)}("{symbol}", {symbol}, {threads[1] if threads else 1024});')
    for head, start, code in functions:
        print(f'static void {head} {{\nunsigned carry;\n{start}', *body(code), '}', sep='\n')
    print('}')


if __name__ == '__main__':
    try:
        main(sys.argv[1])
    except ValueError as error:
        sys.exit(f'{sys.argv[0]}: {sys.argv[1]}: not known: {error}')
