// `hopper.h` for a CPU, so that a machine without a GPU can run the kernel's own source: every thread of a cluster is a
// fiber, a warp's instructions are done when all 32 lanes have come, and copies and messages arrive late and in any
// order. What it cannot show are races between threads of which none waits for the other, and fences that are missing.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
struct uint4 {
    u32 x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};

#define DEVICE inline
#define KERNEL extern "C" void
#define IN_CLUSTERS(threads, ranks)

namespace cpu {

constexpr int LANES = 32;

struct Warp {
    u64 done = 0;  // instructions of the warp so far
    int arrived = 0;
    const void *inputs[LANES];
    void *outputs[LANES];
};

struct Gate {  // a barrier of threads
    u64 done = 0;
    int arrived = 0;
};

struct Block {
    std::vector<u8> storage;
    u8 *memory;
    std::vector<Warp> warps;
    Gate all, first;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<u8[]> stack;
    Block *block;
    int thread, number;
    const u64 *waits_for = nullptr;  // runs when this word, or its highest bit alone, is no longer `while_it_is`
    u64 while_it_is = 0;
    bool phase_alone = false, finished = false;
    const int *counts = nullptr;  // or when this is more than `above`
    int above = 0;
};

struct Cluster {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    std::vector<std::function<void()>> on_the_way;
    Gate gate;
    ucontext_t scheduler;
    Fiber *now = nullptr;
    std::function<void()> body;
    std::mt19937 random{1};
    int first_block, grid;
};

inline Cluster *cluster = nullptr;
constexpr u64 PHASE = 1ull << 63;

inline Fiber &me() { return *cluster->now; }

inline void yield() { swapcontext(&me().context, &cluster->scheduler); }

inline void wait_while(const u64 *word, u64 value, bool phase_alone = false) {
    me().waits_for = word, me().while_it_is = value, me().phase_alone = phase_alone;
    yield();
}

inline void pass(Gate &gate, int count) {
    u64 done = gate.done;
    if (++gate.arrived == count) {
        gate.arrived = 0;
        ++gate.done;
    } else {
        while (gate.done == done) wait_while(&gate.done, done);
    }
}

// All lanes of a warp give an input and get an output; `work` sees all of them.
template <class In, class Out, class Work>
void together(const In &input, Out &output, Work work) {
    Warp &warp = me().block->warps[me().thread / LANES];
    int lane = me().thread % LANES;
    warp.inputs[lane] = &input;
    warp.outputs[lane] = &output;
    u64 done = warp.done;
    if (++warp.arrived == LANES) {
        const In *inputs[LANES];
        Out *outputs[LANES];
        for (int i = 0; i < LANES; ++i) {
            inputs[i] = static_cast<const In *>(warp.inputs[i]);
            outputs[i] = static_cast<Out *>(warp.outputs[i]);
        }
        work(inputs, outputs);
        warp.arrived = 0;
        ++warp.done;
    } else {
        while (warp.done == done) wait_while(&warp.done, done);
    }
}

inline void start() {
    cluster->body();
    me().finished = true;
    yield();
}

inline bool ready(const Fiber &fiber) {
    if (fiber.finished) return false;
    if (fiber.counts) return *fiber.counts > fiber.above;
    if (!fiber.waits_for) return true;
    u64 now = *fiber.waits_for;
    return fiber.phase_alone ? ((now ^ fiber.while_it_is) & PHASE) != 0 : now != fiber.while_it_is;
}

inline void resume(Fiber &fiber) {
    fiber.waits_for = nullptr;
    cluster->now = &fiber;
    swapcontext(&cluster->scheduler, &fiber.context);
}

inline void deliver(size_t which) {
    std::function<void()> arrives = std::move(cluster->on_the_way[which]);
    cluster->on_the_way.erase(cluster->on_the_way.begin() + which);
    arrives();
}

inline void run_to_end() {
    Cluster &c = *cluster;
    int idle = 0;
    for (;;) {
        bool ran = false, left = false;
        for (Fiber &fiber : c.fibers) {
            left |= !fiber.finished;
            if (ready(fiber)) {
                resume(fiber);
                ran = true;
            }
        }
        if (!left) break;
        bool polls = !ran && c.random() % 2;
        if (polls)  // a poll may be for something else than its barrier, also while copies are on the way
            for (Fiber &fiber : c.fibers)
                if (!fiber.finished && fiber.phase_alone) resume(fiber);
        if (!polls && !c.on_the_way.empty() && (!ran || c.random() % 512 == 0)) {
            for (size_t some = 1 + c.random() % c.on_the_way.size(); some; --some)
                deliver(c.random() % c.on_the_way.size());
            ran = true;
        }
        idle = ran ? 0 : idle + 1;
        if (idle > 64) {
            std::fprintf(stderr, "every thread waits\n");
            std::abort();
        }
    }
    if (!c.on_the_way.empty()) {
        std::fprintf(stderr, "something arrives where nobody is any more\n");
        std::abort();
    }
}

template <class... Types, size_t... Places>
void call(void (*kernel)(Types...), void **arguments, std::index_sequence<Places...>) {
    kernel(*static_cast<Types *>(arguments[Places])...);
}

// Run a kernel's grid, one cluster after another.
template <class... Types>
void launch(void (*kernel)(Types...), int blocks, int threads, int ranks, int bytes, void **arguments) {
    for (int first = 0; first < blocks; first += ranks) {
        Cluster now;
        cluster = &now;
        now.first_block = first;
        now.grid = blocks;
        now.random.seed(first + 1);
        now.body = [=] { call(kernel, arguments, std::index_sequence_for<Types...>{}); };
        now.blocks.resize(ranks);
        now.fibers.resize(ranks * threads);
        for (int rank = 0; rank < ranks; ++rank) {
            Block &block = now.blocks[rank];
            block.storage.assign(bytes + 128, 0xff);  // as good as NaN
            block.memory = block.storage.data() + (128 - reinterpret_cast<uintptr_t>(block.storage.data()) % 128);
            block.warps.resize(threads / LANES);
            for (int thread = 0; thread < threads; ++thread) {
                Fiber &fiber = now.fibers[rank * threads + thread];
                constexpr size_t STACK = 64 * 1024;
                fiber.stack.reset(new u8[STACK]);
                fiber.block = &block, fiber.thread = thread, fiber.number = rank;
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.get();
                fiber.context.uc_stack.ss_size = STACK;
                fiber.context.uc_link = nullptr;
                makecontext(&fiber.context, start, 0);
            }
        }
        run_to_end();
        cluster = nullptr;
    }
}

// A barrier in shared memory: the highest bit is its phase, then arrivals in all and those still to come, and bytes.
struct Barrier {
    u64 word;
    int all() const { return word >> 48 & 0xff; }
    int left() const { return word >> 40 & 0xff; }
    int bytes() const { return static_cast<int>(word & 0xffffffff); }
};

inline void change(u64 *word, int arrivals, int bytes) {
    Barrier b{*word};
    int left = b.left() - arrivals, open = b.bytes() + bytes;
    if (left < 0) {
        std::fprintf(stderr, "more arrivals than a barrier expects\n");
        std::abort();
    }
    u64 phase = b.word & PHASE;
    if (left == 0 && open == 0) phase ^= PHASE, left = b.all();
    *word = phase | static_cast<u64>(b.all()) << 48 | static_cast<u64>(left) << 40 | static_cast<u32>(open);
}

template <class T>
T *in_block(T *mine, int rank) {
    return reinterpret_cast<T *>(cluster->blocks[rank].memory + (reinterpret_cast<u8 *>(mine) - me().block->memory));
}

}  // namespace cpu

inline int thread_index() { return cpu::me().thread; }
inline u32 nothing() { return 0; }
inline int block_index() { return cpu::cluster->first_block + cpu::me().number; }
inline int block_count() { return cpu::cluster->grid; }
inline int block_size() { return static_cast<int>(cpu::me().block->warps.size()) * cpu::LANES; }
inline u8 *shared_memory() { return cpu::me().block->memory; }

inline void barrier_init(u64 *b, int arrivals) {
    *b = static_cast<u64>(arrivals) << 48 | static_cast<u64>(arrivals) << 40;
}
inline void barriers_made() {}
inline void barrier_arrive(u64 *b, int count = 1) { cpu::change(b, count, 0); }
inline void barrier_expect(u64 *b, int bytes) { cpu::change(b, 1, bytes); }
inline bool barrier_passed(u64 *b, int parity) {
    u64 current = parity ? cpu::PHASE : 0;  // a phase has passed when the barrier is no longer in it
    if ((*b & cpu::PHASE) == current) cpu::wait_while(b, current, true);
    return (*b & cpu::PHASE) != current;
}
inline bool barrier_passed_cluster(u64 *b, int parity) { return barrier_passed(b, parity); }
inline void publish(int *count, int value) { *count = value; }
inline int wait_until_above(int *count, int value) {
    if (*count <= value) {
        cpu::me().counts = count, cpu::me().above = value;
        cpu::yield();
        cpu::me().counts = nullptr;
    }
    return *count;
}
inline void block_sync() { cpu::pass(cpu::me().block->all, block_size()); }
inline void sync_first(int threads) { cpu::pass(cpu::me().block->first, threads); }
inline void cluster_sync() { cpu::pass(cpu::cluster->gate, static_cast<int>(cpu::cluster->fibers.size())); }
inline int cluster_rank() { return cpu::me().number; }
inline void before_copies() {}

inline void copy_in(void *to, const void *from, int bytes, u64 *barrier) {
    if (bytes % 16 || reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16) {
        std::fprintf(stderr, "a copy that is not a multiple of 16 bytes\n");
        std::abort();
    }
    std::memset(to, 0xff, bytes);
    cpu::cluster->on_the_way.push_back([=] {
        std::memcpy(to, from, bytes);
        cpu::change(barrier, 0, -bytes);
    });
}

inline void send(float *to, u64 *barrier, int rank, const float *v, int count) {
    std::vector<float> letter(v, v + count);
    float *there = cpu::in_block(to, rank);
    u64 *counts = cpu::in_block(barrier, rank);
    cpu::cluster->on_the_way.push_back([=] {
        std::memcpy(there, letter.data(), 4 * count);
        cpu::change(counts, 0, -4 * count);
    });
}
inline void send4(float *to, u64 *barrier, int rank, const float *v) { send(to, barrier, rank, v, 4); }
inline void send2(float *to, u64 *barrier, int rank, const float *v) { send(to, barrier, rank, v, 2); }

inline void warp_sync() {
    int none = 0, out;
    cpu::together(none, out, [](auto, auto) {});
}

struct Shuffle {
    float x;
    int from;
};

inline float shuffle(float x, int from) {
    Shuffle input{x, from};
    float out;
    cpu::together(input, out, [](auto inputs, auto outputs) {
        for (int lane = 0; lane < cpu::LANES; ++lane) *outputs[lane] = inputs[inputs[lane]->from]->x;
    });
    return out;
}
inline int lane_index() { return thread_index() % cpu::LANES; }
inline float from_lane(float x, int lane) { return shuffle(x, lane & 31); }
inline float from_xor(float x, int mask) { return shuffle(x, lane_index() ^ mask); }
inline float from_before(float x, int distance) {
    return shuffle(x, lane_index() >= distance ? lane_index() - distance : lane_index());
}
inline u32 votes(bool yes) {
    u32 out;
    cpu::together(yes, out, [](auto inputs, auto outputs) {
        u32 all = 0;
        for (int lane = 0; lane < cpu::LANES; ++lane) all |= static_cast<u32>(*inputs[lane]) << lane;
        for (int lane = 0; lane < cpu::LANES; ++lane) *outputs[lane] = all;
    });
    return out;
}
inline int ones(u32 x) { return __builtin_popcount(x); }

inline u32 as_bits(float x) {
    u32 out;
    std::memcpy(&out, &x, 4);
    return out;
}
inline float from_bits(u32 x) {
    float out;
    std::memcpy(&out, &x, 4);
    return out;
}
inline float power_of_two(float x) { return std::exp2(x); }
inline float one_over(float x) { return 1.0f / x; }
inline float one_over_root(float x) { return 1.0f / std::sqrt(x); }
inline float natural_log(float x) { return std::log(x); }
inline u32 round_one(float x) {
    u32 bits = as_bits(x);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline u32 rounded2(float low, float high) { return round_one(low) | round_one(high) << 16; }

struct Matrices {
    u16 rows[4][8][8];
};

inline void gather_matrices(u32 (&out)[4], const void *row, bool transposed) {
    struct Out {
        u32 words[4];
    } result;
    cpu::together(row, result, [=](auto inputs, auto outputs) {
        Matrices m;
        for (int lane = 0; lane < cpu::LANES; ++lane) {
            if (reinterpret_cast<uintptr_t>(*inputs[lane]) % 16) std::abort();
            std::memcpy(m.rows[lane / 8][lane % 8], *inputs[lane], 16);
        }
        for (int lane = 0; lane < cpu::LANES; ++lane)
            for (int i = 0; i < 4; ++i) {
                int a = lane / 4, b = lane % 4 * 2;
                u32 low = transposed ? m.rows[i][b][a] : m.rows[i][a][b];
                u32 high = transposed ? m.rows[i][b + 1][a] : m.rows[i][a][b + 1];
                outputs[lane]->words[i] = low | high << 16;
            }
    });
    std::memcpy(out, result.words, 16);
}
inline void load_matrices(u32 (&out)[4], const void *row) { gather_matrices(out, row, false); }
inline void load_transposed(u32 (&out)[4], const void *row) { gather_matrices(out, row, true); }

inline void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    struct In {
        u32 a[4], b[2];
        float c[4];
    } input;
    struct Out {
        float c[4];
    } output;
    std::memcpy(input.a, a, 16);
    input.b[0] = b0, input.b[1] = b1;
    std::memcpy(input.c, c, 16);
    cpu::together(input, output, [](auto inputs, auto outputs) {
        float A[16][16], B[16][8];
        auto half = [](u32 word, int which) { return from_bits(which ? word & 0xffff0000u : word << 16); };
        for (int lane = 0; lane < cpu::LANES; ++lane)
            for (int h = 0; h < 2; ++h) {
                int g = lane / 4, k = lane % 4 * 2 + h;
                A[g][k] = half(inputs[lane]->a[0], h), A[g + 8][k] = half(inputs[lane]->a[1], h);
                A[g][k + 8] = half(inputs[lane]->a[2], h), A[g + 8][k + 8] = half(inputs[lane]->a[3], h);
                B[k][g] = half(inputs[lane]->b[0], h), B[k + 8][g] = half(inputs[lane]->b[1], h);
            }
        for (int lane = 0; lane < cpu::LANES; ++lane)
            for (int i = 0; i < 4; ++i) {
                int row = lane / 4 + (i & 2 ? 8 : 0), column = lane % 4 * 2 + (i & 1);
                float sum = inputs[lane]->c[i];
                for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
                outputs[lane]->c[i] = sum;
            }
    });
    std::memcpy(c, output.c, 16);
}
