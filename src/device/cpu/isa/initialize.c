/* Initial values. Counter: [0], [1] the group of four elements, [2] the parameter, [3] 0. */
#include "device/cpu/isa/kernel_names.h"
#include "device/cpu/isa/random.h"

static void uniform_run(const sli_init *init, const uint32_t *words, float *out)
{
    float low = init->low, high = init->high, range = high - low;
    for (int i = 0; i < RUN_WORDS; i++) {
        float value = low + range * ((float)(int32_t)(words[i] >> 8) * 0x1p-24f);
        out[i] = value < high ? value : low; /* rounding may reach `high` */
    }
}

/* Box and Muller: two uniform numbers give two normal ones. 1 - u is in (0, 1]. */
static void normal_run(const sli_init *init, const uint32_t *words, float *out)
{
    for (int i = 0; i < RUN_WORDS; i += 2) {
        float radius = sqrtf(-2.0f * logf(1.0f - sli_uniform_from_bits(words[i])));
        float angle = 0x1.921fb6p2f * sli_uniform_from_bits(words[i + 1]);
        out[i] = init->low + init->high * radius * cosf(angle);
        out[i + 1] = init->low + init->high * radius * sinf(angle);
    }
}

void SLI_OF_ISA(sli_initialize)(const sli_init *init, sli_philox_key key, uint32_t site,
                                int64_t first, int64_t count, float *to)
{
    if (init->kind == SLI_INIT_CONSTANT) {
        for (int64_t i = first; i < first + count; i++)
            to[i] = init->low;
        return;
    }
    for (int64_t done = 0; done < count; done += RUN_WORDS) {
        uint64_t group = (uint64_t)(first + done) / 4;
        uint32_t words[RUN_WORDS];
        float run[RUN_WORDS];
        random_run(key, (uint32_t)group, (uint32_t)(group >> 32), site, 0, words);
        if (init->kind == SLI_INIT_NORMAL)
            normal_run(init, words, run);
        else
            uniform_run(init, words, run);
        int64_t part = count - done < RUN_WORDS ? count - done : RUN_WORDS;
        memcpy(to + first + done, run, (size_t)part * sizeof *run);
    }
}
