// What the kernel asks of a Hopper GPU, one instruction a function: barriers in shared memory, copies that run by
// themselves, messages between the blocks of a cluster, tensor cores. `tests/rl/hopper_on_cpu.h` has the same names for
// a CPU, on which the tests run the kernel.
//
// Sources: PTX ISA 8.0 and later, sections 9.7.9 (data movement), 9.7.13 (barriers) and 9.7.14 (mma).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define IN_CLUSTERS(threads, ranks) __launch_bounds__(threads, 1) __cluster_dims__(ranks, 1, 1)

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE int block_count() { return gridDim.x; }
DEVICE int block_size() { return blockDim.x; }

// Nothing, though no compiler knows: grids have one dimension here. What is computed with it waits for its other operand.
DEVICE u32 nothing() { return blockIdx.z; }

DEVICE u8 *shared_memory() {
    extern __shared__ __align__(128) u8 memory[];
    return memory;
}

DEVICE u32 address_of(const void *shared) { return (u32)__cvta_generic_to_shared(shared); }

// --- barriers ---

DEVICE void barrier_init(u64 *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(arrivals) : "memory");
}

// After all `barrier_init`, by the thread that made them; the others see them behind the next barrier of the block, and
// of the cluster.
DEVICE void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_arrive(u64 *barrier, int count = 1) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)), "r"(count)
                 : "memory");
}

// Arrive, and let the phase end only when so many bytes more have come.
DEVICE void barrier_expect(u64 *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)),
                 "r"(bytes)
                 : "memory");
}

DEVICE bool barrier_passed(u64 *barrier, int parity) {
    u32 passed;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(address_of(barrier)), "r"(parity)
        : "memory");
    return passed;
}

// The same, with what other blocks of the cluster wrote.
DEVICE bool barrier_passed_cluster(u64 *barrier, int parity) {
    u32 passed;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(address_of(barrier)), "r"(parity)
        : "memory");
    return passed;
}

// A count that one thread raises and others wait for.
DEVICE void publish(int *count, int value) {
    asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(address_of(count)), "r"(value) : "memory");
}

DEVICE int wait_until_above(int *count, int value) {
    int now;
    do asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(now) : "r"(address_of(count)) : "memory");
    while (now <= value);
    return now;
}

DEVICE void block_sync() { __syncthreads(); }

// A barrier of the block's first `threads` threads.
DEVICE void sync_first(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

DEVICE void warp_sync() { __syncwarp(); }

// --- clusters ---

DEVICE int cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

DEVICE u32 address_in(const void *shared, int rank) {
    u32 out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address_of(shared)), "r"(rank));
    return out;
}

// Four numbers to the same place of another block; they count at its barrier when they are there.
DEVICE void send4(float *to, u64 *barrier, int rank, const float *v) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address_in(to, rank)),
        "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(address_in(barrier, rank))
        : "memory");
}

DEVICE void send2(float *to, u64 *barrier, int rank, const float *v) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                     address_in(to, rank)),
                 "f"(v[0]), "f"(v[1]), "r"(address_in(barrier, rank))
                 : "memory");
}

// --- copies ---

// From global to shared memory, in multiples of 16 bytes; counts at the barrier when it is there.
DEVICE void copy_in(void *to, const void *from, int bytes, u64 *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address_of(to)),
        "l"(from), "r"(bytes), "r"(address_of(barrier))
        : "memory");
}

// What this thread wrote before is seen by copies that begin after.
DEVICE void before_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

// --- a warp ---

DEVICE float from_lane(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE float from_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE float from_before(float x, int distance) { return __shfl_up_sync(0xffffffffu, x, distance); }
DEVICE u32 votes(bool yes) { return __ballot_sync(0xffffffffu, yes); }
DEVICE int ones(u32 x) { return __popc(x); }

// --- numbers ---

DEVICE float from_bits(u32 x) { return __uint_as_float(x); }
DEVICE float power_of_two(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
DEVICE float one_over(float x) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
DEVICE float one_over_root(float x) { return rsqrtf(x); }
DEVICE float natural_log(float x) { return logf(x); }

// Two numbers rounded to bf16, `low` in the lower half.
DEVICE u32 rounded2(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// --- tensor cores ---

// Four 8 × 8 matrices of 16-bit numbers, whose rows lie where the lanes say. What is written there by ordinary stores
// has to be behind a barrier.
DEVICE void load_matrices(u32 (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address_of(row)));
}

DEVICE void load_transposed(u32 (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address_of(row)));
}

// c += a · b: 16 × 16 by 16 × 8 numbers of bf16, summed in FP32.
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
