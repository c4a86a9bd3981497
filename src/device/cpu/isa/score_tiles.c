/* The softmax of a head's scores a tile of keys after the other, with keys as rows.
 *
 * A query is a lane: its maximum and its sum run over the rows, from the first key to the last, and
 * over nothing else. Lanes are worked on in groups of a few vectors. */
#include "device/cpu/isa/isa.h"
#include "device/cpu/isa/random.h"

enum { GROUP = SLI_SMALL_LEAST, VECTORS = GROUP / WIDTH };

/* So many of a group's first lanes may not see the key; may be negative or more than all. */
static int hidden_lanes(const sli_score_tile *tile, int64_t key, int64_t first_lane)
{
    return (int)(key - tile->distance - first_lane);
}

/* Of x and y, the larger in each lane; y where x is NaN. */
static inline vector larger_of(vector x, vector y)
{
    int_vector is_larger = x > y;
    return (vector)(((int_vector)x & is_larger) | ((int_vector)y & ~is_larger));
}

static void find_largest(const sli_score_tile *tile, int64_t first, const float *scores,
                         float *largest)
{
    vector found[VECTORS];
    memcpy(found, largest, sizeof found);
    for (int64_t key = 0; key < tile->keys; key++) {
        const float *x = scores + key * tile->lanes;
        int hidden = hidden_lanes(tile, key, first);
        for (int v = 0; v < VECTORS && hidden <= 0; v++)
            found[v] = larger_of(*(const vector *)(x + v * WIDTH), found[v]);
        for (int l = hidden; l < GROUP && hidden > 0; l++)
            if (x[l] > found[l / WIDTH][l % WIDTH])
                found[l / WIDTH][l % WIDTH] = x[l];
    }
    memcpy(largest, found, sizeof found);
}

/* Scores are scaled after a subtraction, as in sli_softmax. */
static void exponentiate(const sli_score_tile *tile, int64_t first, float *scores,
                         const float *restrict largest, float *restrict sums)
{
    float scale = tile->scale;
    for (int64_t key = 0; key < tile->keys; key++) {
        float *restrict x = scores + key * tile->lanes;
        int hidden = hidden_lanes(tile, key, first);
        for (int l = 0; l < GROUP; l++) {
            float power = exp_f32(scale * (x[l] - largest[l]));
            x[l] = l >= hidden ? power : 0.0f;
            sums[l] += x[l];
        }
    }
}

static void apply_multipliers(const sli_score_tile *tile, float *restrict x)
{
    for (int64_t i = 0; tile->multipliers && i < tile->keys * tile->lanes; i++)
        x[i] *= tile->multipliers[i];
}

void SLI_OF_ISA(sli_softmax_tile)(const sli_score_tile *tile, float *scores, float *largest,
                                  float *sums, float *corrections)
{
    for (int64_t first = 0; first < tile->lanes; first += GROUP) {
        float found[GROUP], added[GROUP] = {0};
        memcpy(found, largest + first, sizeof found);
        find_largest(tile, first, scores + first, found);
        exponentiate(tile, first, scores + first, found, added);
        for (int l = 0; l < GROUP; l++) {
            float correction = exp_f32(tile->scale * (largest[first + l] - found[l]));
            sums[first + l] = sums[first + l] * correction + added[l];
            corrections[first + l] = correction;
            largest[first + l] = found[l];
        }
    }
    apply_multipliers(tile, scores);
}

void SLI_OF_ISA(sli_softmax_tile_backward)(const sli_score_tile *tile, float *scores, float *grads,
                                           const float *log_sum_exp, const float *inner)
{
    float scale = tile->scale;
    apply_multipliers(tile, grads);
    for (int64_t first = 0; first < tile->lanes; first += GROUP) {
        float sums[GROUP], inners[GROUP];
        memcpy(sums, log_sum_exp + first, sizeof sums);
        memcpy(inners, inner + first, sizeof inners);
        for (int64_t key = 0; key < tile->keys; key++) {
            float *restrict x = scores + key * tile->lanes + first;
            float *restrict grad = grads + key * tile->lanes + first;
            int hidden = hidden_lanes(tile, key, first);
            for (int l = 0; l < GROUP; l++) {
                float power = exp_f32(scale * (x[l] - sums[l]));
                float gradient = scale * (power * (grad[l] - inners[l]));
                x[l] = l >= hidden ? power : 0.0f;
                grad[l] = l >= hidden ? gradient : 0.0f;
            }
        }
    }
    apply_multipliers(tile, scores);
}

void SLI_OF_ISA(sli_multipliers)(const sli_dropout *dropout, int64_t row_columns, int64_t first_row,
                                 int64_t rows, int64_t first_column, int64_t columns, float *to)
{
    masks m;
    masks_begin(&m, dropout, row_columns, 0);
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + row * columns, masks_get(&m, first_row + row, first_column, columns),
               (size_t)columns * sizeof *to);
}

void SLI_OF_ISA(sli_scale_rows)(int64_t rows, int64_t width, float *x, const float *factors)
{
    for (int64_t row = 0; row < rows; row++) {
        float *restrict own = x + row * width, factor = factors[row];
        for (int64_t i = 0; i < width && factor != 1.0f; i++)
            own[i] *= factor;
    }
}
