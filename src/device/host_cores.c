#define _GNU_SOURCE /* gethostname */

#include "device/host_cores.h"

#include "device/cpu/cpu_cores.h"

#include <string.h>
#include <unistd.h>

/* words[0] is the machine's name, hashed; then comes a bit for each core. */
sl_status sli_host_cores_read(int64_t words[SLI_CORE_WORDS])
{
    char name[256] = "";
    uint64_t hash = 14695981039346656037U; /* FNV-1a */
    sli_cpu_cores found;
    SL_TRY(sli_cpu_cores_find(&found));
    memset(words, 0, SLI_CORE_WORDS * sizeof *words);
    gethostname(name, sizeof name - 1);
    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211U;
    words[0] = (int64_t)hash;
    for (int i = 0; i < found.allowed_count; i++)
        if (found.allowed[i] < SLI_MAX_CORES)
            words[1 + found.allowed[i] / 64] |= (int64_t)(UINT64_C(1) << found.allowed[i] % 64);
    sli_cpu_cores_clear(&found);
    return SL_OK;
}

static bool have_common_core(const int64_t *one, const int64_t *other)
{
    for (int w = 1; w < SLI_CORE_WORDS; w++)
        if (one[w] & other[w])
            return true;
    return false;
}

bool sli_host_cores_are_own(const int64_t *all, int count, int own)
{
    const int64_t *mine = all + (size_t)own * SLI_CORE_WORDS;
    int neighbours = 0;
    for (int i = 0; i < count; i++) {
        const int64_t *other = all + (size_t)i * SLI_CORE_WORDS;
        if (i == own || other[0] != mine[0])
            continue;
        if (have_common_core(mine, other))
            return false;
        neighbours++;
    }
    return neighbours > 0;
}

bool sli_host_cores_suffice(sl_device *const *devices, int count)
{
    int64_t threads = 0;
    for (int i = 0; i < count; i++)
        threads += sl_device_thread_count(devices[i]);
    return threads <= sli_cpu_cores_at_once();
}
