/* The softmax of a head's scores a tile of keys after the other, with keys as rows.
 *
 * A query is a lane: its maximum and its sum run over the rows, from the first key to the last, and
 * over nothing else. A vector of lanes is worked on at a time. */
#include "device/cpu/isa/isa.h"
#include "device/cpu/isa/random.h"

#define LOG2_E 0x1.715476p0f

/* ---- Lanes ------------------------------------------------------------------------------ */

/* In each lane x where all of the mask's bits are set, y where none is. */
static inline vector choose(int_vector mask, vector x, vector y)
{
    return (vector)(((int_vector)x & mask) | ((int_vector)y & ~mask));
}

/* Of x and y, the larger in each lane; y where x is NaN. */
static inline vector larger_of(vector x, vector y)
{
    return choose(x > y, x, y);
}

/* 2^x for x < 127.5, within 2 units in the last place; 0 where it would be subnormal, NaN for NaN.
 * Softmaxes have an x of about 0 at most. x = n + r with |r| <= 1/2; the polynomial is a minimax
 * fit of (2^r - 1) / r. n is rounded as in exp_f32. */
static inline vector exp2_of(vector x)
{
    const float to_integer = 0x1.8p23f + 127.0f;
    vector shifted = x + to_integer;
    vector r = x - (shifted - to_integer);
    vector p = 0x1.5bba14p-10f * r + 0x1.3cea88p-7f;
    p = p * r + 0x1.c6b752p-5f;
    p = p * r + 0x1.ebf9bcp-3f;
    p = p * r + 0x1.62e42ap-1f;
    p = p * r + 1.0f;
    vector power = p * (vector)((int_vector)shifted << 23);
    return choose(x < -126.0f, (vector){0}, power);
}

/* ---- Masks ------------------------------------------------------------------------------ */

/* So many keys, the first of the tile, all lanes of a vector see. */
static int64_t keys_of_all(const sli_score_tile *tile, int64_t first_lane)
{
    int64_t count = tile->distance + first_lane + 1;
    return count < 0 ? 0 : count < tile->keys ? count : tile->keys;
}

/* The lanes that see the key. */
static inline int_vector lanes_that_see(const sli_score_tile *tile, int64_t key, int64_t first_lane)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const int_vector *)numbers >= (int32_t)(key - tile->distance - first_lane);
}

static void apply_multipliers(const sli_score_tile *tile, float *restrict x)
{
    for (int64_t i = 0; tile->multipliers && i < tile->keys * tile->lanes; i++)
        x[i] *= tile->multipliers[i];
}

/* ---- Forward ---------------------------------------------------------------------------- */

/* The largest of the lanes' scores and of `largest`; NaNs are passed over. */
static vector find_largest(const sli_score_tile *tile, int64_t first, const float *scores,
                           vector largest)
{
    enum { TOGETHER = 4 }; /* keys that do not wait for each other */
    int64_t whole = keys_of_all(tile, first), key = 0, ld = tile->lanes;
    vector found[TOGETHER] = {largest, largest, largest, largest};
    for (; key + TOGETHER <= whole; key += TOGETHER)
        for (int i = 0; i < TOGETHER; i++)
            found[i] = larger_of(*(const vector *)(scores + (key + i) * ld), found[i]);
    for (int i = 1; i < TOGETHER; i++)
        found[0] = larger_of(found[i], found[0]);
    for (; key < tile->keys; key++) {
        vector x = *(const vector *)(scores + key * ld);
        found[0] = choose(lanes_that_see(tile, key, first), larger_of(x, found[0]), found[0]);
    }
    return found[0];
}

/* Returns the sums over keys. `factor` is that of the scores in powers of 2; they are scaled after
 * a subtraction, as in sli_softmax. */
static vector exponentiate(const sli_score_tile *tile, float factor, int64_t first, float *scores,
                           vector largest)
{
    int64_t whole = keys_of_all(tile, first), ld = tile->lanes;
    vector sums = {0};
    for (int64_t key = 0; key < whole; key++) {
        vector x = exp2_of(factor * (*(vector *)(scores + key * ld) - largest));
        *(vector *)(scores + key * ld) = x;
        sums += x;
    }
    for (int64_t key = whole; key < tile->keys; key++) {
        vector x = exp2_of(factor * (*(vector *)(scores + key * ld) - largest));
        x = choose(lanes_that_see(tile, key, first), x, (vector){0});
        *(vector *)(scores + key * ld) = x;
        sums += x;
    }
    return sums;
}

void SLI_OF_ISA(sli_softmax_tile)(const sli_score_tile *tile, float *scores, float *largest,
                                  float *sums, float *corrections)
{
    float factor = tile->scale * LOG2_E;
    for (int64_t first = 0; first < tile->lanes; first += WIDTH) {
        vector before = *(vector *)(largest + first);
        vector found = find_largest(tile, first, scores + first, before);
        vector added = exponentiate(tile, factor, first, scores + first, found);
        vector correction = exp2_of(factor * (before - found));
        *(vector *)(largest + first) = found;
        *(vector *)(sums + first) = *(vector *)(sums + first) * correction + added;
        *(vector *)(corrections + first) = correction;
    }
    apply_multipliers(tile, scores);
}

void SLI_OF_ISA(sli_scale_rows)(int64_t rows, int64_t width, float *x, const float *factors)
{
    for (int64_t row = 0; row < rows; row++) {
        float *restrict own = x + row * width, factor = factors[row];
        for (int64_t i = 0; i < width && factor != 1.0f; i++)
            own[i] *= factor;
    }
}

/* ---- Backward --------------------------------------------------------------------------- */

static void differentiate(const sli_score_tile *tile, int64_t first, float *scores, float *grads,
                          vector log_sum_exp, vector out_dot_grad)
{
    float scale = tile->scale, factor = scale * LOG2_E;
    int64_t whole = keys_of_all(tile, first), ld = tile->lanes;
    for (int64_t key = 0; key < whole; key++) {
        vector *score = (vector *)(scores + key * ld), *grad = (vector *)(grads + key * ld);
        vector power = exp2_of(factor * (*score - log_sum_exp));
        *grad = scale * (power * (*grad - out_dot_grad));
        *score = power;
    }
    for (int64_t key = whole; key < tile->keys; key++) {
        vector *score = (vector *)(scores + key * ld), *grad = (vector *)(grads + key * ld);
        vector power = exp2_of(factor * (*score - log_sum_exp));
        int_vector sees = lanes_that_see(tile, key, first);
        *grad = choose(sees, scale * (power * (*grad - out_dot_grad)), (vector){0});
        *score = choose(sees, power, (vector){0});
    }
}

void SLI_OF_ISA(sli_softmax_tile_backward)(const sli_score_tile *tile, float *scores, float *grads,
                                           const float *log_sum_exp, const float *out_dot_grad)
{
    apply_multipliers(tile, grads);
    for (int64_t first = 0; first < tile->lanes; first += WIDTH)
        differentiate(tile, first, scores + first, grads + first,
                      *(const vector *)(log_sum_exp + first),
                      *(const vector *)(out_dot_grad + first));
    apply_multipliers(tile, scores);
}

/* ---- Dropout ---------------------------------------------------------------------------- */

void SLI_OF_ISA(sli_multipliers)(const sli_dropout *dropout, int64_t row_columns, int64_t first_row,
                                 int64_t rows, int64_t first_column, int64_t columns, float *to)
{
    masks m;
    masks_begin(&m, dropout, row_columns, 0);
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + row * columns, masks_get(&m, first_row + row, first_column, columns),
               (size_t)columns * sizeof *to);
}
