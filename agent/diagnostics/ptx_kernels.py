"""Holds the GPU kernels of the diagnostic as PTX. The driver compiles them for the GPU of the host.

The PTX has version 6.0 and targets compute capability 5.0, which every current driver accepts. Every kernel
is a grid-stride loop: each thread handles every n-th element, and n is the number of threads in the grid.

The parameter ``out`` points to three 64-bit words. They contain the number of mismatches, the lowest index of
a mismatch, and the two values of one mismatch as (found << 32 | expected).
"""

_START = """
    .reg .pred %p<3>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<24>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd1, %r1, %r2;
    cvt.u64.u32 %rd2, %r3;
    add.u64 %rd1, %rd1, %rd2;
    mul.wide.u32 %rd3, %r4, %r2;
"""  # %rd1: first index of this thread, %rd3: stride (number of threads in the grid)

_COUNT_MISMATCH = """
    atom.global.add.u64 %rd10, [%rd6], 1;
    atom.global.min.u64 %rd11, [%rd6+8], %rd1;
    cvt.u64.u32 %rd12, %r8;
    cvt.u64.u32 %rd13, %r9;
    shl.b64 %rd12, %rd12, 32;
    or.b64 %rd12, %rd12, %rd13;
    st.global.u64 [%rd6+16], %rd12;
"""  # %rd6: address of ``out``, %r8: the value that was found, %r9: the value that was expected

FILL_KERNEL = f"""
.visible .entry fill(.param .u64 words, .param .u64 count, .param .u32 factor, .param .u32 offset)
{{{_START}
    ld.param.u64 %rd4, [words];
    ld.param.u64 %rd5, [count];
    ld.param.u32 %r5, [factor];
    ld.param.u32 %r6, [offset];
    cvta.to.global.u64 %rd4, %rd4;
again:
    setp.ge.u64 %p1, %rd1, %rd5;
    @%p1 bra done;
    cvt.u32.u64 %r7, %rd1;
    mad.lo.u32 %r9, %r7, %r5, %r6;
    shl.b64 %rd7, %rd1, 2;
    add.u64 %rd7, %rd4, %rd7;
    st.global.u32 [%rd7], %r9;
    add.u64 %rd1, %rd1, %rd3;
    bra again;
done:
    ret;
}}
"""

CHECK_KERNEL = f"""
.visible .entry check(
    .param .u64 words, .param .u64 count, .param .u32 factor, .param .u32 offset, .param .u64 out)
{{{_START}
    ld.param.u64 %rd4, [words];
    ld.param.u64 %rd5, [count];
    ld.param.u32 %r5, [factor];
    ld.param.u32 %r6, [offset];
    ld.param.u64 %rd6, [out];
    cvta.to.global.u64 %rd4, %rd4;
    cvta.to.global.u64 %rd6, %rd6;
again:
    setp.ge.u64 %p1, %rd1, %rd5;
    @%p1 bra done;
    cvt.u32.u64 %r7, %rd1;
    mad.lo.u32 %r9, %r7, %r5, %r6;
    shl.b64 %rd7, %rd1, 2;
    add.u64 %rd7, %rd4, %rd7;
    ld.global.u32 %r8, [%rd7];
    setp.eq.u32 %p2, %r8, %r9;
    @%p2 bra next;
{_COUNT_MISMATCH}
next:
    add.u64 %rd1, %rd1, %rd3;
    bra again;
done:
    ret;
}}
"""

# Computes c = a x b for square matrices of 32-bit floats. Each thread sums whole elements in a fixed order.
# This is slow, but every healthy GPU computes identical bits.
MULTIPLY_KERNEL = f"""
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 side)
{{
    .reg .f32 %f<4>;{_START}
    ld.param.u64 %rd4, [a];
    ld.param.u64 %rd5, [b];
    ld.param.u64 %rd6, [c];
    ld.param.u32 %r5, [side];
    cvta.to.global.u64 %rd4, %rd4;
    cvta.to.global.u64 %rd5, %rd5;
    cvta.to.global.u64 %rd6, %rd6;
    mul.wide.u32 %rd7, %r5, %r5;
    cvt.u64.u32 %rd8, %r5;
    shl.b64 %rd9, %rd8, 2;
again:
    setp.ge.u64 %p1, %rd1, %rd7;
    @%p1 bra done;
    div.u64 %rd10, %rd1, %rd8;
    rem.u64 %rd11, %rd1, %rd8;
    mul.lo.u64 %rd12, %rd10, %rd9;
    add.u64 %rd12, %rd4, %rd12;
    shl.b64 %rd13, %rd11, 2;
    add.u64 %rd13, %rd5, %rd13;
    mov.f32 %f1, 0f00000000;
    mov.u32 %r6, 0;
sum:
    ld.global.f32 %f2, [%rd12];
    ld.global.f32 %f3, [%rd13];
    fma.rn.f32 %f1, %f2, %f3, %f1;
    add.u64 %rd12, %rd12, 4;
    add.u64 %rd13, %rd13, %rd9;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p2, %r6, %r5;
    @%p2 bra sum;
    shl.b64 %rd14, %rd1, 2;
    add.u64 %rd14, %rd6, %rd14;
    st.global.f32 [%rd14], %f1;
    add.u64 %rd1, %rd1, %rd3;
    bra again;
done:
    ret;
}}
"""

COMPARE_KERNEL = f"""
.visible .entry same(.param .u64 words, .param .u64 others, .param .u64 count, .param .u64 out)
{{{_START}
    ld.param.u64 %rd4, [words];
    ld.param.u64 %rd8, [others];
    ld.param.u64 %rd5, [count];
    ld.param.u64 %rd6, [out];
    cvta.to.global.u64 %rd4, %rd4;
    cvta.to.global.u64 %rd8, %rd8;
    cvta.to.global.u64 %rd6, %rd6;
again:
    setp.ge.u64 %p1, %rd1, %rd5;
    @%p1 bra done;
    shl.b64 %rd7, %rd1, 2;
    add.u64 %rd9, %rd8, %rd7;
    add.u64 %rd7, %rd4, %rd7;
    ld.global.u32 %r8, [%rd7];
    ld.global.u32 %r9, [%rd9];
    setp.eq.u32 %p2, %r8, %r9;
    @%p2 bra next;
{_COUNT_MISMATCH}
next:
    add.u64 %rd1, %rd1, %rd3;
    bra again;
done:
    ret;
}}
"""

_HEADER = ".version 6.0\n.target sm_50\n.address_size 64\n"
PTX_MODULE = f"{_HEADER}{FILL_KERNEL}{CHECK_KERNEL}{MULTIPLY_KERNEL}{COMPARE_KERNEL}"
