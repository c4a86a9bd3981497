#include "device/cuda/fake_cuda.h"
#include "core/clock.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GPUS = 2, MOST_STREAMS = 64, ALIGNMENT = 256, HUGE_PAGE = 2 << 20 };
#define RESERVED_BYTES ((size_t)1 << 32)

/* An event lives as long as its handle or a task that knows it. */
struct CUevent_st {
    cudaStream_t stream;     /* that it was recorded on last */
    uint64_t recorded, done; /* how often */
    double seconds;          /* when it was done */
    int references;
};

typedef struct fake_task {
    struct fake_task *next;
    cudaError_t (*work)(void *argument); /* NULL: it is about the event */
    cudaEvent_t event;
    uint64_t count; /* of the event's records: waits for so many, or is this one */
    bool waits;
    _Alignas(16) char argument[];
} task;

typedef struct block {
    struct block *next;
    char *memory;
    size_t bytes;
    int gpu;
    bool is_free;
} block;

typedef struct pinned {
    struct pinned *next;
    void *memory;
    size_t bytes;
} pinned;

struct CUmemPoolHandle_st {
    int gpu;
};

static struct {
    pthread_mutex_t lock; /* guards all below */
    struct CUstream_st *streams[MOST_STREAMS];
    cudaError_t error; /* of queued work; it stays, as on a GPU */
    bool is_closed;
    char *memory; /* [RESERVED_BYTES] if closed, without access but while work is done */
    size_t used, limit, live[GPUS];
    block *blocks;
    pinned *pinned;
    uint64_t random;
    fake_cuda_state state;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .random = 20240229};

static _Thread_local int current_gpu;
static _Thread_local cudaError_t last_error;

fake_cuda_state *fake_cuda(void)
{
    return &all.state;
}

static cudaError_t fail(cudaError_t code)
{
    last_error = code;
    return code;
}

static uint32_t random_below(uint32_t below)
{
    all.random = all.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(all.random >> 33) % below;
}

/* ---- Memory ----------------------------------------------------------------------------- */

static void begin(void)
{
    pthread_mutex_lock(&all.lock);
    if (all.memory)
        return;
    const char *limit = getenv("FAKE_CUDA_BYTES"), *seed = getenv("SLUICE_TEST_SEED");
    all.limit = limit ? strtoull(limit, NULL, 10) : (size_t)1 << 30;
    all.random = seed ? strtoull(seed, NULL, 10) : all.random;
    all.is_closed = getenv("FAKE_CUDA_CLOSED") != NULL;
    all.state.zeroing = getenv("FAKE_CUDA_ZEROING") != NULL;
    all.memory = mmap(NULL, RESERVED_BYTES, all.is_closed ? PROT_NONE : PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(all.memory != MAP_FAILED);
    madvise(all.memory, RESERVED_BYTES, MADV_HUGEPAGE); /* opened and closed sooner */
}

static void end(void)
{
    pthread_mutex_unlock(&all.lock);
}

/* All of it, or by far: the bounds are those of huge pages. */
static void open_memory(bool open)
{
    size_t whole = (all.used + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (all.is_closed && whole)
        mprotect(all.memory, whole, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

bool fake_is_device_memory(const void *memory)
{
    return (uintptr_t)memory - (uintptr_t)all.memory < RESERVED_BYTES;
}

static block *find_free(size_t bytes, int gpu)
{
    for (block *b = all.blocks; b; b = b->next)
        if (b->is_free && b->bytes == bytes && b->gpu == gpu)
            return b;
    return NULL;
}

static block *block_of(const void *memory)
{
    for (block *b = all.blocks; b; b = b->next)
        if (b->memory == memory && !b->is_free)
            return b;
    fprintf(stderr, "fake CUDA: %p is freed, but is no memory of a GPU\n", memory);
    abort();
}

static block *make_block(size_t bytes, int gpu)
{
    block *made = calloc(1, sizeof *made);
    assert(made && all.used + bytes <= RESERVED_BYTES);
    *made = (block){all.blocks, all.memory + all.used, bytes, gpu, true};
    all.blocks = made;
    all.used += bytes;
    return made;
}

cudaError_t cudaMallocFromPoolAsync(void **out, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream)
{
    (void)stream; /* what gave it back is done: no queue of this GPU uses it */
    size_t rounded = ALIGNMENT;
    while (rounded < bytes)
        rounded *= 2;
    bytes = rounded;
    *out = NULL;
    begin();
    cudaError_t code = cudaSuccess;
    bool fails = ++all.state.allocations >= all.state.failing && all.state.failing > 0;
    if (fails || all.live[pool->gpu] + bytes > all.limit) {
        code = cudaErrorMemoryAllocation;
    } else {
        block *taken = find_free(bytes, pool->gpu);
        if (!taken)
            taken = make_block(bytes, pool->gpu);
        taken->is_free = false;
        all.live[pool->gpu] += bytes;
        open_memory(true);
        memset(taken->memory, 0xFF, bytes);
        open_memory(false);
        *out = taken->memory;
    }
    end();
    return code == cudaSuccess ? code : fail(code);
}

static cudaError_t give_back(void *argument)
{
    block *given = block_of(*(void **)argument);
    memset(given->memory, 0xFF, given->bytes);
    given->is_free = true;
    all.live[given->gpu] -= given->bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    return fake_enqueue(stream, give_back, &memory, sizeof memory);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const struct cudaMemPoolProps *properties)
{
    *out = malloc(sizeof **out);
    assert(*out);
    (*out)->gpu = properties->location.id;
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    free(pool);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *out, int gpu, int owner)
{
    assert(gpu != owner && gpu < GPUS && owner < GPUS);
    *out = all.state.isolated == 0;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access,
                                 size_t count)
{
    assert(count == 1 && access->flags == cudaMemAccessFlagsProtReadWrite);
    assert(access->location.type == cudaMemLocationTypeDevice && access->location.id != pool->gpu);
    all.state.accesses++;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    (void)pool;
    (void)attribute;
    (void)value;
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    (void)attribute;
    begin();
    *(uint64_t *)value = all.live[pool->gpu];
    end();
    return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes)
{
    (void)pool;
    (void)bytes;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    begin();
    *free_bytes = all.limit - all.live[current_gpu];
    *total_bytes = all.limit;
    end();
    return cudaSuccess;
}

/* ---- Pinned memory of the host ---------------------------------------------------------- */

bool fake_is_pinned(const void *memory)
{
    bool found = false;
    begin();
    for (const pinned *p = all.pinned; p; p = p->next)
        found = found || (uintptr_t)memory - (uintptr_t)p->memory < p->bytes;
    end();
    return found;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    pinned *made = malloc(sizeof *made);
    (void)flags;
    *out = malloc(bytes);
    assert(made && *out);
    begin();
    *made = (pinned){all.pinned, *out, bytes};
    all.pinned = made;
    end();
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    begin();
    pinned **link = &all.pinned;
    while ((*link)->memory != memory)
        link = &(*link)->next;
    pinned *dead = *link;
    *link = dead->next;
    end();
    free(dead);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *memory)
{
    memset(out, 0, sizeof *out);
    out->type = fake_is_pinned(memory)          ? cudaMemoryTypeHost
                : fake_is_device_memory(memory) ? cudaMemoryTypeDevice
                                                : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

/* ---- Queues ----------------------------------------------------------------------------- */

static void drop_event(cudaEvent_t event)
{
    if (event && --event->references == 0)
        free(event);
}

/* Does the stream's next task; false: it has none that can be done. */
static bool step_stream(cudaStream_t stream)
{
    task *next = stream->first;
    if (!next || (next->waits && next->event->done < next->count))
        return false;
    if (next->work) {
        cudaError_t code = next->work(next->argument);
        if (code == cudaErrorNotReady)
            return false;
        all.error = all.error == cudaSuccess ? code : all.error;
    } else if (!next->waits) {
        next->event->done = next->count;
        next->event->seconds = sli_clock_seconds();
    }
    stream->first = next->next;
    if (!stream->first)
        stream->last = NULL;
    drop_event(next->event);
    free(next);
    return true;
}

/* Does one of a stream's tasks, or of others' that it waits for: records come before waits, so this
 * ends. False: it waits for another rank. */
static bool advance_stream(cudaStream_t stream)
{
    while (stream->first && !step_stream(stream)) {
        if (stream->first->work)
            return false;
        stream = stream->first->event->stream;
    }
    return true;
}

/* Does all of a stream's tasks, as far as they wait for no other rank. */
static void run_stream(cudaStream_t stream)
{
    open_memory(true);
    while (stream->first && advance_stream(stream))
        ;
    open_memory(false);
}

/* With the lock held: does all of them. */
static void finish_stream(cudaStream_t stream)
{
    for (run_stream(stream); stream->first; run_stream(stream)) {
        pthread_mutex_unlock(&all.lock);
        sched_yield();
        pthread_mutex_lock(&all.lock);
    }
}

static void step_at_random(void)
{
    if (random_below(8) > 0)
        return;
    open_memory(true);
    for (uint32_t steps = random_below(8); steps > 0; steps--) {
        cudaStream_t stream = all.streams[random_below(MOST_STREAMS)];
        if (stream)
            for (uint32_t tasks = random_below(20); tasks > 0 && step_stream(stream); tasks--)
                ;
    }
    open_memory(false);
}

static task *append(cudaStream_t stream, size_t bytes)
{
    task *made = calloc(1, sizeof *made + bytes);
    assert(made);
    if (stream->last)
        stream->last->next = made;
    else
        stream->first = made;
    stream->last = made;
    return made;
}

cudaError_t fake_enqueue(cudaStream_t stream, cudaError_t (*work)(void *argument),
                         const void *argument, size_t bytes)
{
    begin();
    task *made = append(stream, bytes);
    made->work = work;
    memcpy(made->argument, argument, bytes);
    step_at_random();
    cudaError_t code = all.error;
    end();
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    assert(*out);
    (*out)->enqueue = fake_enqueue;
    begin();
    int slot = 0;
    while (all.streams[slot])
        slot++;
    assert(slot < MOST_STREAMS);
    all.streams[slot] = *out;
    end();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    begin();
    all.state.waits++;
    finish_stream(stream);
    cudaError_t code = all.error;
    end();
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    begin();
    run_stream(stream);
    cudaError_t code = all.error;
    if (code == cudaSuccess && stream->first)
        code = cudaErrorNotReady;
    end();
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    begin();
    finish_stream(stream);
    for (int i = 0; i < MOST_STREAMS; i++)
        if (all.streams[i] == stream)
            all.streams[i] = NULL;
    end();
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    assert(*out);
    (*out)->references = 1;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop)
{
    begin();
    assert(start->done > 0 && stop->done > 0);
    *milliseconds = (float)(1e3 * (stop->seconds - start->seconds));
    end();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    begin();
    drop_event(event);
    end();
    return cudaSuccess;
}

static void append_event(cudaStream_t stream, cudaEvent_t event, bool waits)
{
    task *made = append(stream, 0);
    made->event = event;
    made->count = event->recorded;
    made->waits = waits;
    event->references++;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    begin();
    event->stream = stream;
    event->recorded++;
    append_event(stream, event, false);
    end();
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    begin();
    while (event->done < event->recorded) {
        open_memory(true);
        bool advanced = advance_stream(event->stream);
        open_memory(false);
        if (advanced)
            continue;
        pthread_mutex_unlock(&all.lock); /* it waits for another rank */
        sched_yield();
        pthread_mutex_lock(&all.lock);
    }
    cudaError_t code = all.error;
    end();
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    begin();
    append_event(stream, event, true);
    step_at_random();
    end();
    return cudaSuccess;
}

/* ---- GPUs ------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *out)
{
    *out = getenv("FAKE_CUDA_NO_DRIVER") ? 0 : GPUS;
    return *out ? cudaSuccess : fail(cudaErrorInsufficientDriver);
}

cudaError_t cudaSetDevice(int gpu)
{
    current_gpu = gpu;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int gpu)
{
    (void)gpu;
    *out = attribute == cudaDevAttrComputeCapabilityMajor   ? 9
           : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                            : 1;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation     ? "out of memory"
           : code == cudaErrorInsufficientDriver ? "there is no driver"
           : code == cudaErrorInvalidValue       ? "invalid argument"
                                                 : "an error";
}
