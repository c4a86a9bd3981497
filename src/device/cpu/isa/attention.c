/* Kernels of attention: its score matrices, and products of small matrices. */
#include "device/cpu/isa/isa.h"
#include "device/cpu/isa/random.h"

/* ---- Scores ----------------------------------------------------------------------------- */

/* How many keys the block's row `row` may see. */
static int64_t visible_keys(const sli_score_block *block, int64_t row)
{
    return block->causal ? sli_smaller(block->first_query + row + 1, block->columns)
                         : block->columns;
}

/* Masks of short rows are drawn ahead over row ends, of long ones only where they are needed. */
static int64_t end_of_short_rows(const sli_score_block *block)
{
    return block->positions <= MASK_COLUMNS / 4 ? block->dropout_row + block->rows : 0;
}

static void apply_mask(masks *m, const sli_score_block *block, int64_t row, int64_t count, float *x)
{
    for (int64_t start = 0; m->dropout && start < count; start += MASK_COLUMNS) {
        int64_t length = sli_smaller(count - start, MASK_COLUMNS);
        const float *restrict mask = masks_get(m, block->dropout_row + row, start, length);
        for (int64_t i = 0; i < length; i++)
            x[start + i] *= mask[i];
    }
}

/* Scores are scaled after a subtraction: of large ones, x * scale - max * scale would be the
 * rounding of one product, whose exponential may overflow. */
void SLI_OF_ISA(sli_softmax)(const sli_score_block *block, float *scores)
{
    masks m;
    masks_begin(&m, block->dropout, block->positions, end_of_short_rows(block));
    for (int64_t row = 0; row < block->rows; row++) {
        float *restrict x = scores + row * block->ld;
        int64_t count = visible_keys(block, row);
        float max = max_f32(count, x, -INFINITY), scale = block->scale;
        for (int64_t i = 0; i < count; i++)
            x[i] = exp_f32(scale * (x[i] - max));
        float sum = sum_f32(count, x), inverse = 1.0f / sum;
        for (int64_t i = 0; i < count; i++)
            x[i] *= inverse;
        if (block->log_sum_exp)
            block->log_sum_exp[row] = max + logf(sum) / scale;
        apply_mask(&m, block, row, count, x);
        for (int64_t i = count; i < block->columns; i++)
            x[i] = 0.0f;
    }
}

void SLI_OF_ISA(sli_softmax_backward)(const sli_score_block *block, float *scores, float *grads,
                                      const float *out_dot_grad)
{
    masks m;
    masks_begin(&m, block->dropout, block->positions, end_of_short_rows(block));
    for (int64_t row = 0; row < block->rows; row++) {
        float *restrict x = scores + row * block->ld, *restrict grad = grads + row * block->ld;
        int64_t count = visible_keys(block, row);
        float log_sum_exp = block->log_sum_exp[row], scale = block->scale;
        for (int64_t i = 0; i < count; i++)
            x[i] = exp_f32(scale * (x[i] - log_sum_exp));
        apply_mask(&m, block, row, count, grad);
        for (int64_t i = 0; i < count; i++)
            grad[i] = scale * (x[i] * (grad[i] - out_dot_grad[row]));
        apply_mask(&m, block, row, count, x);
        for (int64_t i = count; i < block->columns; i++)
            x[i] = grad[i] = 0.0f;
    }
}

void SLI_OF_ISA(sli_row_products)(int64_t rows, int64_t width, int64_t ld, const float *a,
                                  const float *b, float *inner)
{
    for (int64_t row = 0; row < rows; row++) {
        const float *restrict x = a + row * ld, *restrict y = b + row * ld;
        float lanes[LANES] = {0};
        int64_t whole = width - width % LANES;
        for (int64_t i = 0; i < whole; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += x[i + l] * y[i + l];
        float sum = sum_of_lanes(lanes);
        for (int64_t i = whole; i < width; i++)
            sum += x[i] * y[i];
        inner[row] = sum;
    }
}

/* ---- Small products --------------------------------------------------------------------- */

/* Products of the small matrices of attention, where calling a library costs more than the product.
 *
 * c is made in tiles of ROWS rows and up to COLUMNS vectors whose sums stay in registers. A tile
 * that would pass the last row or column is moved back, so that it makes some elements again, with
 * the same result: all vectors are whole. */

#if defined(__AVX512F__)
enum { ROWS = 6, COLUMNS = 4 }; /* of 32 registers */
#else
enum { ROWS = 4, COLUMNS = 3 }; /* of 16 */
#endif

typedef struct tile {
    const float *a[ROWS]; /* a's rows */
    float *c[ROWS];
    int64_t column[COLUMNS]; /* where the vectors begin */
    int64_t first, end;      /* of the inner dimension */
} tile;

/* Inlined with a constant `columns`. */
static inline __attribute__((always_inline)) void make_tile(const sli_small_product *p,
                                                            const tile *t, int columns)
{
    vector sum[ROWS][COLUMNS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < columns; v++)
            sum[r][v] = (vector){0};
    for (int64_t k = t->first; k < t->end; k++) {
        vector b[COLUMNS];
        for (int v = 0; v < columns; v++)
            b[v] = *(const vector *)(p->b + k * p->ldb + t->column[v]);
        for (int r = 0; r < ROWS; r++) {
            float a = t->a[r][k * p->a_step];
            for (int v = 0; v < columns; v++)
                sum[r][v] += a * b[v];
        }
    }
    /* All are read before any is written: the last rows may be the same one. */
    for (int r = 0; r < ROWS && p->adds; r++)
        for (int v = 0; v < columns; v++)
            sum[r][v] += *(const vector *)(t->c[r] + t->column[v]);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < columns; v++)
            *(vector *)(t->c[r] + t->column[v]) = sum[r][v];
}

/* Of the columns from `start`, a multiple of WIDTH, to `end` - 1. */
static void make_row_of_tiles(const sli_small_product *p, tile *t, int64_t start, int64_t end)
{
    for (; start < end; start += COLUMNS * WIDTH) {
        int64_t left = (end - start + WIDTH - 1) / WIDTH;
        for (int v = 0; v < COLUMNS; v++) {
            int64_t column = start + v * WIDTH, last = p->n - WIDTH;
            t->column[v] = column < last ? column : last;
        }
        if (left >= COLUMNS)
            make_tile(p, t, COLUMNS);
        else if (left == 3)
            make_tile(p, t, 3);
        else if (left == 2)
            make_tile(p, t, 2);
        else
            make_tile(p, t, 1);
    }
}

void SLI_OF_ISA(sli_small_product)(const sli_small_product *p)
{
    for (int64_t row = 0; row < p->m; row += ROWS) {
        tile t;
        int64_t end = row + ROWS < p->m ? row + ROWS : p->m;
        for (int r = 0; r < ROWS; r++) {
            int64_t i = row + r < p->m ? row + r : p->m - 1;
            t.a[r] = p->a + i * p->a_row;
            t.c[r] = p->c + i * p->ldc;
        }
        t.first = p->triangle == SLI_A_UPPER ? row : 0;
        t.end = p->triangle == SLI_A_LOWER ? end : p->k;
        make_row_of_tiles(p, &t, p->triangle == SLI_C_UPPER ? row / WIDTH * WIDTH : 0,
                          p->triangle == SLI_C_LOWER ? end : p->n);
    }
}

void SLI_OF_ISA(sli_transpose)(int64_t rows, int64_t columns, const float *from, int64_t ld,
                               float *to)
{
    enum { TOGETHER = 4 }; /* rows whose elements are stored at once */
    int64_t whole = rows - rows % TOGETHER;
    for (int64_t i = 0; i < whole; i += TOGETHER)
        for (int64_t j = 0; j < columns; j++) {
            float four[TOGETHER];
            for (int r = 0; r < TOGETHER; r++)
                four[r] = from[(i + r) * ld + j];
            memcpy(to + j * rows + i, four, sizeof four);
        }
    for (int64_t i = whole; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[j * rows + i] = from[i * ld + j];
}
