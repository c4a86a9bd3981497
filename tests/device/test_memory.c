/* The accounts of a device, and the cache behind it. */
#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "support/check.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
enum { CACHES = 0 };
#else
enum { CACHES = 1 }; /* under AddressSanitizer nothing is cached */
#endif

static sl_device *create(void)
{
    sl_device *device;
    assert_int_equal(sl_device_create_cpu(2, &device), SL_OK);
    return device;
}

static sl_memory_stats stats_of(const sl_device *device)
{
    sl_memory_stats stats;
    sl_device_memory(device, &stats);
    return stats;
}

static void *allocate(sl_device *device, sl_memory_category category, size_t bytes)
{
    void *memory;
    assert_int_equal(sli_device_allocate(device, category, bytes, &memory), SL_OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    return memory;
}

/* ---- Accounts --------------------------------------------------------------------------- */

static void accounts_count_bytes_by_category_with_peaks(void **state)
{
    sl_device *device = create();
    void *a = allocate(device, SL_MEMORY_PARAMETERS, 1000);
    void *b = allocate(device, SL_MEMORY_ACTIVATIONS, 5000);
    sli_device_release(device, SL_MEMORY_ACTIVATIONS, b, 5000);
    void *c = allocate(device, SL_MEMORY_GRADIENTS, 3000);
    sl_memory_stats stats = stats_of(device);
    assert_int_equal(stats.current_bytes[SL_MEMORY_PARAMETERS], 1000);
    assert_int_equal(stats.current_bytes[SL_MEMORY_ACTIVATIONS], 0);
    assert_int_equal(stats.peak_bytes[SL_MEMORY_ACTIVATIONS], 5000);
    assert_int_equal(stats.current_total_bytes, 4000);
    assert_int_equal(stats.peak_total_bytes, 6000);
    assert_true(stats.reserved_bytes >= 4000);
    sl_device_reset_peak(device);
    stats = stats_of(device);
    assert_int_equal(stats.peak_bytes[SL_MEMORY_ACTIVATIONS], 0);
    assert_int_equal(stats.peak_total_bytes, 4000);
    sli_device_release(device, SL_MEMORY_PARAMETERS, a, 1000);
    sli_device_release(device, SL_MEMORY_GRADIENTS, c, 3000);
    assert_int_equal(stats_of(device).current_total_bytes, 0);
    sl_device_destroy(&device);
    assert_null(device);
}

static size_t resident_pages(void)
{
    unsigned long all, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return resident;
}

/* Also in blocks that others have written; those of a large one that are not touched take no
 * memory. */
static void memory_can_come_as_zeros(void **state)
{
    static const size_t sizes[] = {1, 100, 5000, (3 << 20) + 77, 64 << 20};
    SCOPED(sl_device) *device = create();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *memory = allocate(device, SL_MEMORY_OPTIMIZER, sizes[i]);
        memset(memory, 0xAB, sizes[i]);
        sli_device_release(device, SL_MEMORY_OPTIMIZER, memory, sizes[i]);
        size_t before = resident_pages();
        void *zeros;
        check_ok(sli_device_allocate_zero(device, SL_MEMORY_OPTIMIZER, sizes[i], &zeros));
        /* A sanitizer's own memory is an eighth. */
        assert_true(resident_pages() <= before + 1024 + sizes[i] / 4 / 4096);
        for (size_t k = 0; k < sizes[i]; k++)
            if (((unsigned char *)zeros)[k] != 0)
                fail_msg("byte %zu of %zu is not 0", k, sizes[i]);
        assert_int_equal(stats_of(device).current_bytes[SL_MEMORY_OPTIMIZER], sizes[i]);
        sli_device_release(device, SL_MEMORY_OPTIMIZER, zeros, sizes[i]);
    }
}

static void nothing_is_allocated_for_zero_bytes(void **state)
{
    SCOPED(sl_device) *device = create();
    void *memory = device;
    assert_int_equal(sli_device_allocate(device, SL_MEMORY_WORKSPACE, 0, &memory), SL_OK);
    assert_null(memory);
    sli_device_release(device, SL_MEMORY_WORKSPACE, memory, 0);
    assert_int_equal(stats_of(device).peak_total_bytes, 0);
}

static void every_category_has_its_name(void **state)
{
    assert_string_equal(sl_memory_category_name(SL_MEMORY_PARAMETERS), "parameters");
    assert_string_equal(sl_memory_category_name(SL_MEMORY_WORKSPACE), "workspace");
}

static void refused_memory_names_the_device_the_bytes_and_what_it_holds(void **state)
{
    SCOPED(sl_device) *device = create();
    void *a = allocate(device, SL_MEMORY_PARAMETERS, 1000), *b = a;
    size_t absurd = (size_t)1 << 58;
    assert_int_equal(sli_device_allocate(device, SL_MEMORY_ACTIVATIONS, absurd, &b), SL_ERR_MEMORY);
    assert_null(b);
    char expected[256];
    snprintf(expected, sizeof expected,
             "cpu: no memory for 288230376151711744 bytes of activations; it holds these bytes: "
             "parameters 1000, gradients 0, optimizer 0, activations 0, workspace 0; the process "
             "can have %" PRIu64 ", of which the host has ",
             sli_usable_memory(""));
    if (strncmp(sl_error_text(), expected, strlen(expected)) != 0)
        fail_msg("%s", sl_error_text());
    assert_int_equal(stats_of(device).current_bytes[SL_MEMORY_ACTIVATIONS], 0);
    sli_device_release(device, SL_MEMORY_PARAMETERS, a, 1000);
}

enum { THREADS = 4, ROUNDS = 2000 };

static void *allocate_and_release(void *argument)
{
    sl_device *device = argument;
    for (int i = 1; i <= ROUNDS; i++) {
        void *memory;
        size_t bytes = (size_t)(i % 97 + 1) * 40;
        if (sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &memory) != SL_OK)
            return device;
        memset(memory, i, bytes);
        sli_device_release(device, SL_MEMORY_WORKSPACE, memory, bytes);
    }
    return NULL;
}

static void threads_may_allocate_at_once(void **state)
{
    SCOPED(sl_device) *device = create();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_and_release, device), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(stats_of(device).current_total_bytes, 0);
}

/* ---- The cache -------------------------------------------------------------------------- */

static void blocks_are_at_most_a_32nd_larger_than_asked(void **state)
{
    for (size_t bytes = 1; bytes < (size_t)1 << 40; bytes += bytes / 3 + 1) {
        size_t block = sli_memory_block_bytes(bytes);
        assert_true(block >= bytes && block % 64 == 0);
        assert_true(block <= bytes + bytes / 32 || block <= bytes + 63);
        assert_int_equal(sli_memory_block_bytes(block), block);
    }
}

static sli_memory_cache *create_cache(_Atomic uint64_t *reserved)
{
    static sli_memory_bound bound;
    sli_memory_bound_init(&bound);
    return sli_memory_cache_create(reserved, false, &bound);
}

static void released_blocks_serve_later_requests_of_their_size(void **state)
{
    _Atomic uint64_t reserved = 0;
    sli_memory_cache *cache = create_cache(&reserved);
    char *first = sli_memory_cache_allocate(cache, 100000);
    uint64_t after_first = reserved;
    assert_true(after_first >= 100000);
    memset(first, 1, 100000);
    sli_memory_cache_release(cache, first, 100000);
    char *second = sli_memory_cache_allocate(cache, 100000 - 1);
    if (CACHES) {
        assert_ptr_equal(first, second);
        assert_int_equal(reserved, after_first);
    }
    char *third = sli_memory_cache_allocate(cache, 100000);
    assert_ptr_not_equal(second, third);
    sli_memory_cache_release(cache, second, 100000 - 1);
    sli_memory_cache_release(cache, third, 100000);
    sli_memory_cache_destroy(&cache);
    assert_int_equal(reserved, 0);
}

static void large_blocks_are_aligned_to_huge_pages(void **state)
{
    _Atomic uint64_t reserved = 0;
    SCOPED(sli_memory_cache) *cache = create_cache(&reserved);
    char *block = sli_memory_cache_allocate(cache, 5000000);
    assert_int_equal((uintptr_t)block % (2 << 20), 0);
    block[0] = block[4999999] = 1;
    sli_memory_cache_release(cache, block, 5000000);
}

static void a_full_system_gets_the_cached_blocks_back(void **state)
{
    _Atomic uint64_t reserved = 0;
    SCOPED(sli_memory_cache) *cache = create_cache(&reserved);
    void *block = sli_memory_cache_allocate(cache, 1 << 20);
    sli_memory_cache_release(cache, block, 1 << 20);
    assert_int_equal(reserved, CACHES ? 1 << 20 : 0);
    assert_null(sli_memory_cache_allocate(cache, (size_t)1 << 56));
    assert_int_equal(reserved, 0);
}

/* As the stages of one process do. */
static void caches_of_one_bound_share_it(void **state)
{
    enum { ROOM = 1 << 16 };
    _Atomic uint64_t reserved[2] = {0, 0};
    sli_memory_bound bound = {.usable_bytes = ROOM};
    sli_memory_cache *caches[2];
    for (int i = 0; i < 2; i++)
        caches[i] = sli_memory_cache_create(&reserved[i], false, &bound);
    void *first = sli_memory_cache_allocate(caches[0], ROOM / 2);
    assert_non_null(first);
    assert_null(sli_memory_cache_allocate(caches[1], ROOM / 2 + 64));
    assert_int_equal(bound.reserved_bytes, ROOM / 2);
    void *second = sli_memory_cache_allocate(caches[1], ROOM / 2);
    assert_non_null(second);
    assert_null(sli_memory_cache_allocate(caches[0], 64));
    sli_memory_cache_release(caches[0], first, ROOM / 2);
    sli_memory_cache_release(caches[1], second, ROOM / 2);
    for (int i = 0; i < 2; i++)
        sli_memory_cache_destroy(&caches[i]);
    assert_int_equal(bound.reserved_bytes, 0);
}

/* Memory that others in the process hold leaves less room for large blocks. */
static void a_bound_counts_what_the_process_holds_besides(void **state)
{
    enum { HELD = 64 << 20 };
    sli_memory_bound bound;
    sli_memory_bound_init(&bound);
    assert_true(bound.reserved_bytes > 0);
    assert_true(bound.reserved_bytes < bound.usable_bytes);
    bound.usable_bytes = sli_resident_memory() + HELD / 2;
    assert_true(sli_memory_bound_reserve(&bound, HELD / 4));
    sli_memory_bound_release(&bound, HELD / 4);
    FREED char *held = malloc(HELD);
    assert_non_null(held);
    memset(held, 1, HELD);
    assert_false(sli_memory_bound_reserve(&bound, HELD / 4));
}

/* As those of other ranks on the host. */
static void a_bound_counts_what_other_processes_hold(void **state)
{
    uint64_t available = sli_available_memory("");
    sli_memory_bound bound = {.usable_bytes = UINT64_MAX};
    assert_true(available < UINT64_MAX);
    assert_true(sli_memory_bound_reserve(&bound, (size_t)available / 2));
    sli_memory_bound_release(&bound, (size_t)available / 2);
    assert_false(sli_memory_bound_reserve(&bound, (size_t)available * 2));
    assert_int_equal(bound.reserved_bytes, 0);
}

static void debug_memory_is_nan_when_it_comes(void **state)
{
    setenv("SL_DEBUG", "memory", 1);
    SCOPED(sl_device) *device = create();
    unsetenv("SL_DEBUG");
    for (int round = 0; round < 2; round++) {
        float *memory = allocate(device, SL_MEMORY_WORKSPACE, 4000);
        for (int i = 0; i < 1000; i++)
            assert_true(isnan(memory[i]));
        for (int i = 0; i < 1000; i++)
            memory[i] = 1;
        sli_device_release(device, SL_MEMORY_WORKSPACE, memory, 4000);
    }
}

/* The bytes of a device's scratch that the sums of the logits' gradient write. */
static int64_t touched_by_sums(int64_t rows, int64_t classes)
{
    SCOPED(sl_device) *device = create();
    float *scratch = sli_cpu(device)->scratch;
    size_t count = (size_t)(rows * classes);
    FREED float *logits = calloc(count, sizeof *logits);
    FREED int32_t *targets = calloc((size_t)rows, sizeof *targets);
    FREED double *loss = calloc((size_t)rows, sizeof *loss);
    FREED float *sums = calloc((size_t)classes, sizeof *sums);
    assert_true(logits && targets && loss && sums);
    memset(scratch, 0xFF, SLI_SCRATCH_FLOATS * sizeof *scratch);
    const sli_cross_entropy call = {.rows = rows,
                                    .classes = classes,
                                    .ld = classes,
                                    .logits = logits,
                                    .targets = targets,
                                    .ignore = -100,
                                    .grad_scale = 1,
                                    .loss = loss,
                                    .grad_bias = sums};
    assert_int_equal(sli_device_cross_entropy(device, &call), SL_OK);
    int64_t touched = 0;
    for (int64_t i = 0; i < SLI_SCRATCH_FLOATS; i++)
        touched = isnan(scratch[i]) ? touched : i + 1;
    return touched * (int64_t)sizeof *scratch;
}

static void sums_touch_as_much_scratch_as_is_said(void **state)
{
    static const int64_t rows[] = {1, 3, 100, 200}, classes[] = {10, 700, 6000};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            assert_int_equal(sli_cpu_sums_bytes(rows[i], classes[k]),
                             touched_by_sums(rows[i], classes[k]));
}

int memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accounts_count_bytes_by_category_with_peaks),
        cmocka_unit_test(memory_can_come_as_zeros),
        cmocka_unit_test(nothing_is_allocated_for_zero_bytes),
        cmocka_unit_test(every_category_has_its_name),
        cmocka_unit_test(refused_memory_names_the_device_the_bytes_and_what_it_holds),
        cmocka_unit_test(threads_may_allocate_at_once),
        cmocka_unit_test(blocks_are_at_most_a_32nd_larger_than_asked),
        cmocka_unit_test(released_blocks_serve_later_requests_of_their_size),
        cmocka_unit_test(large_blocks_are_aligned_to_huge_pages),
        cmocka_unit_test(a_full_system_gets_the_cached_blocks_back),
        cmocka_unit_test(caches_of_one_bound_share_it),
        cmocka_unit_test(a_bound_counts_what_the_process_holds_besides),
        cmocka_unit_test(a_bound_counts_what_other_processes_hold),
        cmocka_unit_test(debug_memory_is_nan_when_it_comes),
        cmocka_unit_test(sums_touch_as_much_scratch_as_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
