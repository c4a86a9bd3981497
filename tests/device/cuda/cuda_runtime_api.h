/* CUDA on the CPU: what the kernels of src/device/cuda/kernels use of CUDA C++, so that a C++
 * compiler builds the same files and the tests run them without a GPU. It stands for the toolkit's
 * header of this name.
 *
 * Blocks run one after another. A thread of a block is a fiber, which has its own stack and runs
 * until it waits for others: for its warp at a shuffle, for the block at __syncthreads. The order
 * of blocks, of warps between two barriers, and of lanes is any that the seed gives
 * (SLUICE_TEST_SEED in the environment). Where a kernel lacks a barrier, another order gives
 * another result: some thread reads shared memory before, or after, it should. Shared memory begins
 * as NaN in every block.
 *
 * It ends the process with a sentence where CUDA would leave undefined what happens: lanes of a
 * warp that wait at different barriers, threads that end while others wait for them. */
#ifndef TESTS_DEVICE_CUDA_CUDA_RUNTIME_API_H
#define TESTS_DEVICE_CUDA_CUDA_RUNTIME_API_H

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9
} cudaError_t;
typedef struct CUstream_st *cudaStream_t;

#ifdef __cplusplus
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __host__
#define __device__
#define __global__
#define __launch_bounds__(...)
#define LAUNCH_SHARED(type, name) type *name = (type *)emulation::launch_shared()
#define SHARED(type, name)                                                                         \
    static type name;                                                                              \
    static emulation::shared_variable name##_registered(&name, sizeof name)

struct uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned of_x = 1, unsigned of_y = 1, unsigned of_z = 1) : x(of_x), y(of_y), z(of_z)
    {
    }
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}

static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

/* ---- Fibers ----------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* emulated_switch(save, load): leaves the running stack at *save and goes on with the other. The
 * registers are those that a called function must keep. */
__asm__(".pushsection .text\n"
        "emulated_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".popsection\n");
extern "C" void emulated_switch(void **save, void *load) __attribute__((visibility("hidden")));

namespace emulation
{
typedef void *context;

static inline void switch_context(context *from, context *to)
{
    emulated_switch(from, *to);
}

/* Such a stack as emulated_switch leaves: six registers, then where it returns to. */
static inline void make_context(context *out, char *stack, size_t bytes, void (*enter)())
{
    void **top = (void **)(stack + bytes) - 2;
    *top = (void *)enter;
    *out = top - 6;
}
} // namespace emulation
#else
#include <ucontext.h>

namespace emulation
{
typedef ucontext_t context;

static inline void switch_context(context *from, context *to)
{
    swapcontext(from, to);
}

static inline void make_context(context *out, char *stack, size_t bytes, void (*enter)())
{
    getcontext(out);
    out->uc_stack.ss_sp = stack;
    out->uc_stack.ss_size = bytes;
    makecontext(out, enter, 0);
}
} // namespace emulation
#endif

/* ---- Threads of a block ----------------------------------------------------------------- */

namespace emulation
{
enum { WARP_LANES = 32, MOST_THREADS = 1024, STACK_BYTES = 1 << 16, VALUE_BYTES = 16 };
enum { MOST_COPIES = 64 /* of a thread at once */, MOST_SHARED_BYTES = 227 << 10 };
enum lane_state { READY, AT_WARP, AT_BLOCK, ENDED };

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
};

struct lane {
    context stack;
    uint3 index;
    lane_state state;
    unsigned exchanges; /* that it has been in */
    unsigned copies;    /* that it has begun, and not waited for */
    copy copy_list[MOST_COPIES];
};

struct shared_variable {
    void *memory;
    size_t bytes;
    shared_variable *next;

    shared_variable(void *at, size_t size);
    void fill() const
    {
        memset(memory, 0xFF, bytes); /* NaN */
    }
};

struct machine {
    uint64_t seed, random;
    shared_variable *shared; /* all that a thread has come to so far */
    lane lanes[MOST_THREADS];
    char values[2][MOST_THREADS][VALUE_BYTES]; /* exchanged in a warp, in turns */
    char *stacks;
    context scheduler;
    unsigned threads, running;
    size_t launch_shared_bytes; /* of the array whose size the launch gives */
    void (*body)(void *);
    void *argument;
};

static inline void set_seed(machine *m, uint64_t seed)
{
    m->seed = m->random = seed;
}

inline machine &emulated()
{
    static machine m = {};
    if (!m.stacks) { /* the first call */
        const char *seed = getenv("SLUICE_TEST_SEED");
        m.stacks = (char *)aligned_alloc(4096, (size_t)MOST_THREADS * STACK_BYTES);
        set_seed(&m, seed ? strtoull(seed, NULL, 10) : 20240229);
    }
    return m;
}

/* The first thread that comes to its declaration registers it. */
inline shared_variable::shared_variable(void *at, size_t size)
    : memory(at), bytes(size), next(emulated().shared)
{
    emulated().shared = this;
    fill();
}

[[noreturn]] static inline void fail(const char *what)
{
    fprintf(stderr, "emulated CUDA, seed %llu, block %u %u: %s\n",
            (unsigned long long)emulated().seed, blockIdx.x, blockIdx.y, what);
    abort();
}

static inline unsigned random_below(unsigned below)
{
    machine &m = emulated();
    m.random = m.random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((m.random >> 32) * below >> 32);
}

/* 0 … count - 1 in any order, drawn from the seed. */
static inline void draw_order(unsigned count, unsigned *out)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned other = random_below(i + 1);
        out[i] = out[other];
        out[other] = i;
    }
}

static inline void wait_as(lane_state state)
{
    machine &m = emulated();
    lane &self = m.lanes[m.running];
    self.state = state;
    switch_context(&self.stack, &m.scheduler);
}

static inline char *launch_shared()
{
    alignas(128) static char memory[MOST_SHARED_BYTES];
    return memory;
}

/* A copy to shared memory is done when its thread waits for it, which it must before it ends. */
static inline void begin_copy(void *to, const void *from, size_t bytes)
{
    lane &self = emulated().lanes[emulated().running];
    if (((uintptr_t)to | (uintptr_t)from) % bytes)
        fail("a copy to shared memory is not aligned");
    if (self.copies == MOST_COPIES)
        fail("a thread has begun too many copies");
    self.copy_list[self.copies++] = copy{to, from, bytes};
}

static inline void wait_for_copies()
{
    lane &self = emulated().lanes[emulated().running];
    for (unsigned i = 0; i < self.copies; i++) {
        const copy &c = self.copy_list[i];
        if (c.from)
            memcpy(c.to, c.from, c.bytes);
        else
            memset(c.to, 0, c.bytes);
    }
    self.copies = 0;
}

static inline void enter_thread()
{
    machine &m = emulated();
    m.body(m.argument);
    if (m.lanes[m.running].copies)
        fail("a thread ends before copies that it has begun");
    wait_as(ENDED);
    abort();
}

static inline void start_threads()
{
    machine &m = emulated();
    for (unsigned t = 0; t < m.threads; t++) {
        lane &l = m.lanes[t];
        l.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
        l.state = READY;
        l.exchanges = l.copies = 0;
        make_context(&l.stack, m.stacks + (size_t)t * STACK_BYTES, STACK_BYTES, enter_thread);
    }
}

static inline unsigned count_lanes(unsigned first, unsigned count, lane_state state)
{
    unsigned found = 0;
    for (unsigned t = first; t < first + count; t++)
        found += emulated().lanes[t].state == state;
    return found;
}

static inline void run_ready_lanes(unsigned first, unsigned count)
{
    machine &m = emulated();
    unsigned order[WARP_LANES];
    draw_order(count, order);
    for (unsigned i = 0; i < count; i++) {
        m.running = first + order[i];
        if (m.lanes[m.running].state != READY)
            continue;
        threadIdx = m.lanes[m.running].index;
        switch_context(&m.scheduler, &m.lanes[m.running].stack);
    }
}

/* Until all its lanes have ended or wait for the block. */
static inline void run_warp(unsigned first, unsigned count)
{
    for (;;) {
        run_ready_lanes(first, count);
        unsigned waiting = count_lanes(first, count, AT_WARP);
        if (waiting == 0)
            return;
        if (waiting != count)
            fail("lanes of a warp wait for others that do not come");
        for (unsigned t = first; t < first + count; t++)
            emulated().lanes[t].state = READY;
    }
}

static inline void run_block()
{
    machine &m = emulated();
    unsigned warps = (m.threads + WARP_LANES - 1) / WARP_LANES, order[MOST_THREADS / WARP_LANES];
    for (const shared_variable *v = m.shared; v; v = v->next)
        v->fill();
    memset(launch_shared(), 0xFF, m.launch_shared_bytes); /* NaN */
    start_threads();
    for (;;) {
        draw_order(warps, order);
        for (unsigned i = 0; i < warps; i++) {
            unsigned first = order[i] * WARP_LANES, left = m.threads - first;
            run_warp(first, left < WARP_LANES ? left : (unsigned)WARP_LANES);
        }
        unsigned ended = count_lanes(0, m.threads, ENDED);
        if (ended == m.threads)
            return;
        if (ended > 0)
            fail("threads wait at a barrier for others that have ended");
        for (unsigned t = 0; t < m.threads; t++)
            m.lanes[t].state = READY;
    }
}

static inline cudaError_t run_grid(const cudaLaunchConfig_t *config, void (*body)(void *),
                                   void *argument)
{
    machine &m = emulated();
    gridDim = config->gridDim;
    blockDim = config->blockDim;
    uint64_t threads = (uint64_t)blockDim.x * blockDim.y * blockDim.z;
    uint64_t blocks = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    if (threads == 0 || threads > MOST_THREADS || blocks == 0 || gridDim.x > INT32_MAX ||
        gridDim.y > UINT16_MAX || gridDim.z > UINT16_MAX || blocks > UINT32_MAX ||
        config->dynamicSmemBytes > MOST_SHARED_BYTES)
        return cudaErrorInvalidConfiguration;
    m.launch_shared_bytes = config->dynamicSmemBytes;
    m.threads = (unsigned)threads;
    m.body = body;
    m.argument = argument;
    unsigned *order = (unsigned *)malloc((size_t)blocks * sizeof *order);
    if (!order)
        fail("there is no memory for the order of blocks");
    draw_order((unsigned)blocks, order);
    for (uint64_t i = 0; i < blocks; i++) {
        unsigned b = order[i];
        blockIdx = {b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y};
        run_block();
    }
    free(order);
    return cudaSuccess;
}

/* ---- Exchanges in a warp ---------------------------------------------------------------- */

/* What the lanes of a warp have given; it stays until the lane is in its next exchange but one. */
template <class Value> struct given_values {
    const char (*values)[VALUE_BYTES];

    Value of(unsigned lane) const
    {
        Value value;
        memcpy(&value, values[lane], sizeof value);
        return value;
    }
};

/* Gives `value` to the warp and waits for the others'. */
template <class Value> static given_values<Value> exchange(unsigned mask, Value value)
{
    static_assert(sizeof(Value) <= VALUE_BYTES, "an exchanged value is too large");
    machine &m = emulated();
    unsigned lane = m.running, turn = m.lanes[lane].exchanges++ % 2;
    if (mask != 0xFFFFFFFF)
        fail("an exchange between some lanes of a warp is not emulated");
    if (m.threads % WARP_LANES)
        fail("a block with an exchange between lanes has a warp that is not full");
    memcpy(m.values[turn][lane], &value, sizeof value);
    wait_as(AT_WARP);
    return given_values<Value>{m.values[turn] + lane / WARP_LANES * WARP_LANES};
}

static inline unsigned lane_number()
{
    return emulated().running % WARP_LANES;
}
} // namespace emulation

template <class Value> static Value __shfl_xor_sync(unsigned mask, Value value, int bits)
{
    return emulation::exchange(mask, value).of(emulation::lane_number() ^ (unsigned)bits);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    auto all = emulation::exchange(mask, predicate != 0);
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < emulation::WARP_LANES; lane++)
        ballot |= (unsigned)all.of(lane) << lane;
    return ballot;
}

static inline void __syncthreads()
{
    emulation::wait_as(emulation::AT_BLOCK);
}

/* A block can have as much shared memory as on an H100, or as SLUICE_TEST_SHARED_BYTES in the
 * environment says. */
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class Kernel>
static cudaError_t cudaFuncSetAttribute(Kernel *, cudaFuncAttribute, int bytes)
{
    const char *most = getenv("SLUICE_TEST_SHARED_BYTES");
    return bytes <= (most ? atoi(most) : (int)emulation::MOST_SHARED_BYTES) ? cudaSuccess
                                                                            : cudaErrorInvalidValue;
}

static inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

/* kernel(arguments...) in every thread of every block. */
template <class... Parameters, class... Arguments>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                      void (*kernel)(Parameters...), Arguments &&...arguments)
{
    auto call = [&] { kernel(arguments...); };
    typedef decltype(call) closure;
    return emulation::run_grid(
        config, [](void *it) { (*(closure *)it)(); }, &call);
}

#endif
#endif
