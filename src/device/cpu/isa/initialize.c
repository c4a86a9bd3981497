/* Initial values. Counter: [0], [1] the group of four elements, [2] the parameter, [3] 0. */
#include "device/cpu/isa/kernel_names.h"
#include "device/cpu/isa/masks.h"

/* Four elements of one group from its four words. */
static void uniform_group(const sli_init *init, const uint32_t *words, float *out)
{
    float range = init->high - init->low;
    for (int i = 0; i < 4; i++) {
        float value = init->low + range * sli_uniform_from_bits(words[i]);
        out[i] = value < init->high ? value : init->low; /* rounding may reach `high` */
    }
}

/* Box and Muller: two uniform numbers give two normal ones. 1 - u is in (0, 1]. */
static void normal_group(const sli_init *init, const uint32_t *words, float *out)
{
    for (int i = 0; i < 4; i += 2) {
        float radius = sqrtf(-2.0f * logf(1.0f - sli_uniform_from_bits(words[i])));
        float angle = 0x1.921fb6p2f * sli_uniform_from_bits(words[i + 1]);
        out[i] = init->low + init->high * radius * cosf(angle);
        out[i + 1] = init->low + init->high * radius * sinf(angle);
    }
}

static void draw_run(const sli_init *init, sli_philox_key key, uint32_t site, uint64_t group,
                     float *out)
{
    philox_lanes x;
    philox_run(&x, key, (uint32_t)group, (uint32_t)(group >> 32), site, 0);
    for (int l = 0; l < LANES; l++) {
        uint32_t words[4] = {x.c[0][l], x.c[1][l], x.c[2][l], x.c[3][l]};
        if (init->kind == SLI_INIT_NORMAL)
            normal_group(init, words, out + 4 * l);
        else
            uniform_group(init, words, out + 4 * l);
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
    for (int64_t done = 0; done < count; done += 4 * LANES) {
        float run[4 * LANES];
        draw_run(init, key, site, (uint64_t)(first + done) / 4, run);
        int64_t part = count - done < 4 * LANES ? count - done : 4 * LANES;
        memcpy(to + first + done, run, (size_t)part * sizeof *run);
    }
}
