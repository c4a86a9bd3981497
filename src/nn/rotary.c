/* By how much the pairs of a head turn at each position. All is computed in f32, as transformers
 * does, so that angles at late positions are the same. */
#include "nn/layers.h"

#include <inttypes.h>
#include <math.h>

const char *const sl_rotary_names[] = {"none", "default", "linear", "llama3", NULL};

static const float FULL_TURN = 6.28318530717958647692f;

/* Slower below a wavelength of the positions that the model was first trained on, and between two
 * factors of it a mixture. */
static float scale_as_llama3(const sl_rotary_options *options, float frequency)
{
    float positions = (float)options->original_positions, factor = (float)options->factor;
    float low = (float)options->low_freq_factor, high = (float)options->high_freq_factor;
    float wavelength = FULL_TURN / frequency;
    if (wavelength < positions / high)
        return frequency;
    if (wavelength > positions / low)
        return frequency / factor;
    float smooth = (positions / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

void sli_rotary_frequencies(const sl_rotary_options *options, int64_t head_width,
                            float frequencies[SLI_ROTARY_PAIRS])
{
    for (int64_t i = 0; i < head_width / 2; i++) {
        float exponent = (float)(2 * i) / (float)head_width;
        float frequency = 1 / (float)pow(options->theta, (double)exponent);
        frequencies[i] = options->kind == SL_ROTARY_LINEAR   ? frequency / (float)options->factor
                         : options->kind == SL_ROTARY_LLAMA3 ? scale_as_llama3(options, frequency)
                                                             : frequency;
    }
}

sl_status sli_rotary_check(const char *who, const sl_rotary_options *options, int64_t head_width)
{
    bool scaled = options->kind == SL_ROTARY_LINEAR || options->kind == SL_ROTARY_LLAMA3;
    bool llama3 = options->kind == SL_ROTARY_LLAMA3;
    if (options->kind == SL_ROTARY_NONE)
        return SL_OK;
    if (head_width % 2 || head_width > 2 * SLI_ROTARY_PAIRS)
        return sl_error(SL_ERR_INVALID,
                        "%s: with rotary positions head_width must be even and at most %d, got "
                        "%" PRId64,
                        who, 2 * SLI_ROTARY_PAIRS, head_width);
    if (!(options->theta > 0) || (scaled && !(options->factor > 0)))
        return sl_error(SL_ERR_INVALID,
                        "%s: rotary positions need a theta and a factor above 0, got %g and %g",
                        who, options->theta, options->factor);
    if (llama3 && (options->original_positions < 1 || !(options->low_freq_factor > 0) ||
                   !(options->high_freq_factor > options->low_freq_factor)))
        return sl_error(SL_ERR_INVALID,
                        "%s: llama3's rotary positions need original_positions of at least 1 and "
                        "0 < low_freq_factor < high_freq_factor, got %" PRId64 ", %g and %g",
                        who, options->original_positions, options->low_freq_factor,
                        options->high_freq_factor);
    return SL_OK;
}
