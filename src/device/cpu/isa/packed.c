/* Products of rows: element (i, j) of c is ((c + a[i, 0] b[0, j]) + a[i, 1] b[1, j]) + …, in this
 * order wherever the row lies, whatever rows lie beside it, and however k is cut into calls.
 *
 * b is packed into panels of COLUMNS vectors, each [k, columns] and so read from the front to the
 * back. c is made in tiles of up to ROWS rows of a panel, whose sums stay in registers. */
#include "device/cpu/isa/isa.h"

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, ROWS = 8, COLUMNS = 3 }; /* of 32 registers */
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32, ROWS = 6, COLUMNS = 2 }; /* of 16 */
#else
enum { VECTOR_BYTES = 16, ROWS = 6, COLUMNS = 2 };
#endif
enum { WIDTH = VECTOR_BYTES / sizeof(float), PANEL = COLUMNS * WIDTH, SQUARE = 8 };
_Static_assert(SLI_PACK_COLUMNS % PANEL == 0 && SLI_PACK_WIDTH % WIDTH == 0 && PANEL % SQUARE == 0,
               "panels of whole squares");

/* Loaded from and stored to any float's address. */
typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t eight_halves __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t eight_words __attribute__((vector_size(32)));

/* A panel's columns in memory: whole vectors. */
static int64_t panel_width(int64_t columns)
{
    return columns < PANEL ? (columns + WIDTH - 1) / WIDTH * WIDTH : PANEL;
}

/* ---- Packing ---------------------------------------------------------------------------- */

/* Element `at` of b, and the seven behind it. */
static inline float load_one(const sli_pack *p, int64_t at)
{
    return p->bf16 ? float_of_bits((uint32_t)((const uint16_t *)p->b)[at] << 16)
                   : ((const float *)p->b)[at];
}

static inline void load_eight(const sli_pack *p, int64_t at, eight *to)
{
    if (!p->bf16) {
        *to = *(const eight *)((const float *)p->b + at);
        return;
    }
    eight_halves halves = *(const eight_halves *)((const uint16_t *)p->b + at);
    *to = (eight)(__builtin_convertvector(halves, eight_words) << 16);
}

/* Eight rows of b become eight columns. */
static inline void pack_square(const sli_pack *p, int64_t at, float *to, int64_t width)
{
    eight x[SQUARE], y[SQUARE];
    for (int j = 0; j < SQUARE; j++)
        load_eight(p, at + j * p->ldb, &x[j]);
    for (int j = 0; j < SQUARE; j += 2) {
        y[j] = __builtin_shufflevector(x[j], x[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        y[j + 1] = __builtin_shufflevector(x[j], x[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int j = 0; j < SQUARE; j += 4)
        for (int h = 0; h < 2; h++) {
            eight a = y[j + h], b = y[j + h + 2];
            x[j + 2 * h] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
            x[j + 2 * h + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int j = 0; j < SQUARE / 2; j++) {
        eight a = x[j], b = x[j + 4];
        *(eight *)(to + j * width) = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
        *(eight *)(to + (j + 4) * width) =
            __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Columns first … first + columns - 1 of b, whose rows b's columns are. */
static void pack_transposed(const sli_pack *p, int64_t first, int64_t columns, float *to)
{
    int64_t width = panel_width(columns), squares = columns - columns % SQUARE;
    int64_t whole = p->k - p->k % SQUARE, begin = first * p->ldb;
    for (int64_t k = 0; k < whole; k += SQUARE)
        for (int64_t j = 0; j < squares; j += SQUARE)
            pack_square(p, begin + j * p->ldb + k, to + k * width + j, width);
    for (int64_t k = 0; k < p->k; k++)
        for (int64_t j = k < whole ? squares : 0; j < columns; j++)
            to[k * width + j] = load_one(p, begin + j * p->ldb + k);
}

static void pack_plain(const sli_pack *p, int64_t first, int64_t columns, float *to)
{
    int64_t width = panel_width(columns), whole = columns - columns % SQUARE;
    for (int64_t k = 0; k < p->k; k++) {
        int64_t begin = k * p->ldb + first;
        for (int64_t j = 0; j < whole; j += SQUARE)
            load_eight(p, begin + j, (eight *)(to + k * width + j));
        for (int64_t j = whole; j < columns; j++)
            to[k * width + j] = load_one(p, begin + j);
    }
}

void SLI_OF_ISA(sli_pack)(const sli_pack *p)
{
    float *to = p->to;
    for (int64_t first = 0; first < p->n; first += PANEL) {
        int64_t columns = sli_smaller(PANEL, p->n - first), width = panel_width(columns);
        if (p->transposed)
            pack_transposed(p, first, columns, to);
        else
            pack_plain(p, first, columns, to);
        for (int64_t k = 0; k < p->k && columns < width; k++)
            memset(to + k * width + columns, 0, (size_t)(width - columns) * sizeof *to);
        to += p->k * width;
    }
}

/* ---- Multiplying ------------------------------------------------------------------------ */

typedef struct tile {
    const float *a, *b;
    int64_t lda, k;
    float *c;
    int64_t ldc;
    bool adds;
} tile;

/* Inlined with constant `rows` and `columns`, in vectors. */
static inline __attribute__((always_inline)) void make_tile(const tile *t, int rows, int columns)
{
    vector sum[ROWS][COLUMNS];
    const float *a = t->a, *b = t->b;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < columns; v++)
            sum[r][v] = t->adds ? *(const vector *)(t->c + r * t->ldc + v * WIDTH) : (vector){0};
    for (int64_t k = 0; k < t->k; k++) {
        vector x[COLUMNS];
        for (int v = 0; v < columns; v++)
            x[v] = *(const vector *)(b + (k * columns + v) * WIDTH);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < columns; v++)
                sum[r][v] += a[r * t->lda + k] * x[v];
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < columns; v++)
            *(vector *)(t->c + r * t->ldc + v * WIDTH) = sum[r][v];
}

static inline __attribute__((always_inline)) void make_row(const tile *t, int rows, int columns)
{
    if (columns == COLUMNS)
        make_tile(t, rows, COLUMNS);
    else if (columns == 2)
        make_tile(t, rows, 2);
    else
        make_tile(t, rows, 1);
}

/* Functions of their own, so that the sums of each have all registers. */
static __attribute__((noinline)) void make_whole_tile(const tile *t, int columns)
{
    make_row(t, ROWS, columns);
}

static __attribute__((noinline)) void make_four_rows(const tile *t, int columns)
{
    make_row(t, 4, columns);
}

static __attribute__((noinline)) void make_one_row(const tile *t, int columns)
{
    make_row(t, 1, columns);
}

/* Rows of a panel, as whole vectors of c. */
static void make_rows(tile t, int64_t rows, int columns)
{
    while (rows > 0) {
        int made = rows >= ROWS ? ROWS : rows >= 4 ? 4 : 1;
        if (made == ROWS)
            make_whole_tile(&t, columns);
        else if (made == 4)
            make_four_rows(&t, columns);
        else
            make_one_row(&t, columns);
        rows -= made;
        t.a += made * t.lda;
        t.c += made * t.ldc;
    }
}

/* The last vector of these columns of c is not whole: the tiles are made apart. */
static void make_edge(tile t, int64_t rows, int64_t columns, int vectors)
{
    float apart[ROWS * PANEL];
    size_t bytes = (size_t)columns * sizeof *apart;
    for (int64_t first = 0; first < rows; first += ROWS) {
        tile part = t;
        int64_t count = sli_smaller(ROWS, rows - first);
        part.a = t.a + first * t.lda;
        part.c = apart;
        part.ldc = PANEL;
        memset(apart, 0, sizeof apart);
        for (int64_t r = 0; r < count && t.adds; r++)
            memcpy(apart + r * PANEL, t.c + (first + r) * t.ldc, bytes);
        make_rows(part, count, vectors);
        for (int64_t r = 0; r < count; r++)
            memcpy(t.c + (first + r) * t.ldc, apart + r * PANEL, bytes);
    }
}

void SLI_OF_ISA(sli_multiply_packed)(const sli_packed_product *p)
{
    const float *b = p->b;
    for (int64_t first = 0; first < p->n; first += PANEL) {
        int64_t columns = sli_smaller(PANEL, p->n - first), width = panel_width(columns);
        tile t = {p->a, b, p->lda, p->k, p->c + first, p->ldc, p->adds};
        if (columns == width)
            make_rows(t, p->m, (int)(width / WIDTH));
        else
            make_edge(t, p->m, columns, (int)(width / WIDTH));
        b += p->packed * width;
    }
}
