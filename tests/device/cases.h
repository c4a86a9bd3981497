/* The list of operator cases: what every operation of a device is run on, once for all uses. Tests
 * hold each case against a reference in double precision and each gradient against differences of
 * its forward (test_operators.c); bench_kernels times the large ones. A new device gets all of it
 * by its name, a new operation by its row in case_operations.c and its lines in case_list.c. */
#ifndef TESTS_DEVICE_CASES_H
#define TESTS_DEVICE_CASES_H

#include "device/device.h"

#include <stddef.h>

enum { CASE_ARRAYS = 9, CASE_TEXT_BYTES = 160, CASE_NAME_BYTES = 32, CASE_MOST_POSITIONS = 40 };

/* clang-format off */
typedef enum case_kind {
    CASE_COPY, CASE_WRITE, CASE_READ, CASE_ZERO, CASE_ADD, CASE_SGD, CASE_ADAMW,
    CASE_ADAMW_BF16, CASE_NORM_TERMS, CASE_INITIALIZE, CASE_GEMM, CASE_EPILOGUE, CASE_EPILOGUE_BACKWARD, CASE_EMBEDDING,
    CASE_EMBEDDING_BACKWARD, CASE_ADD_DROPOUT, CASE_ADD_NORM, CASE_ADD_NORM_BACKWARD,
    CASE_SWIGLU, CASE_SWIGLU_BACKWARD, CASE_ROTARY, CASE_ATTENTION, CASE_ATTENTION_BACKWARD, CASE_CROSS_ENTROPY, CASE_KINDS
} case_kind;
/* clang-format on */

/* What a case can have; which of it an operation knows, its row says. */
enum {
    WITH_BETA = 1 << 0, /* adds to what is there */
    WITH_BIAS = 1 << 1,
    WITH_RELU = 1 << 2,
    WITH_GELU = 1 << 3,  /* stronger than RELU */
    WITH_SAVED = 1 << 4, /* the pre-activation; what backward needs */
    WITH_TRANSPOSED_A = 1 << 5,
    WITH_TRANSPOSED_B = 1 << 6,
    WITH_LONG_ROWS = 1 << 7, /* rows of matrices lie further apart than they are long */
    WITH_RESIDUAL = 1 << 8,
    WITH_SUM = 1 << 9,       /* the sum before a norm is wanted; has a gradient */
    OVER_X = 1 << 10,        /* the result (or the sum) lies over x (or its gradient) */
    OVER_RESIDUAL = 1 << 11, /* over the residual (or the sum's gradient) */
    OVER_SUM = 1 << 12,      /* grad_x lies over grad_sum, where nothing is dropped between them */
    WITH_POSITIONS = 1 << 13,
    WITH_CAUSAL_MASK = 1 << 14,
    WITH_GRADIENT = 1 << 15,    /* of the loss; of a norm's x; back from rotary positions */
    WITH_WIDE_VALUES = 1 << 16, /* logits up to 60 */
    WITH_MOMENTUM = 1 << 17,
    WITH_NESTEROV = 1 << 18,
    WITH_FIRST_STEP = 1 << 19,
    WITH_DECAY = 1 << 20,
    WITH_DAMPENING = 1 << 21,
    WITH_L1 = 1 << 22,   /* a norm's kind, with neither L2; initial values: a constant */
    WITH_INF = 1 << 23,  /* initial values: normal, with neither uniform */
    WITH_BF16 = 1 << 24, /* products' matrices; with both they are f32 */
    WITH_TF32 = 1 << 25,
    WITH_TANH = 1 << 26,        /* GELU is the one with tanh */
    WITH_SHARED_KEYS = 1 << 27, /* by queries: case_key_heads */
    WITH_SCALE = 1 << 28,       /* of x */
};

/* One line of the list. */
typedef struct case_spec {
    case_kind kind;
    int64_t size[4]; /* count or bytes; rows, width; m, n, k; samples, positions, heads, width */
    unsigned flags;
    float p;                    /* of dropout */
    char name[CASE_NAME_BYTES]; /* what a timing is called; "": only tests run it */
} case_spec;

typedef enum case_type { CASE_F32, CASE_I32, CASE_F64, CASE_BYTE, CASE_BF16 } case_type;
typedef enum case_use { IN, OUT, INOUT } case_use;

/* How many elements an array has: the product of the case's sizes whose bits are set. */
typedef enum case_dims { GIVEN, FLAT = 1, ROW = 2, MATRIX = 3, QUERIES = 7, HEADS = 15 } case_dims;

/* What an operation's row says of an array. */
typedef struct case_array_info {
    const char *name; /* NULL: there are no more */
    size_t field;     /* offset of the pointer in the arguments */
    case_dims dims;   /* GIVEN: as many as `prepare` says */
    case_use use;
    case_type type;
    unsigned when;    /* there only with one of these flags; 0: always */
    bool needed;      /* then it may not be NULL */
    double tolerance; /* of an element, relative to its own and the array's size */
    double bf16_tolerance,
        tf32_tolerance; /* behind numbers that the operation rounds; 0: none is */
    bool is_sum;        /* overwritten without WITH_BETA */
    bool on_host;
    /* Arrays, counted from 1: which it lies over with OVER_X and OVER_RESIDUAL; what of the
     * forward's it is, given or written. */
    int over_x, over_residual, from;
} case_array_info;

typedef struct case_array {
    int64_t count;
    void *host; /* [count] before the operation, NaN where it is only written; NULL: not there */
    int over;   /* lies in the memory of this array; -1: its own */
} case_array;

/* The arguments of operations that are not structs in device.h. */
typedef struct flat_arguments {
    int64_t count; /* elements; bytes of copies */
    void *to;
    const void *from;
    double *out;
    sli_norm_kind norm;
    sli_init init;
    uint64_t seed;
    uint32_t site;
} flat_arguments;

typedef union case_arguments {
    flat_arguments flat;
    sli_sgd sgd;
    sli_adamw adamw;
    sli_gemm gemm;
    sli_epilogue epilogue;
    sli_epilogue_backward epilogue_backward;
    sli_embedding embedding;
    sli_embedding_backward embedding_backward;
    sli_add_dropout add_dropout;
    sli_add_norm add_norm;
    sli_add_norm_backward add_norm_backward;
    sli_swiglu swiglu;
    sli_swiglu_backward swiglu_backward;
    sli_rotary rotary;
    sli_attention attention;
    sli_attention_backward attention_backward;
    sli_cross_entropy cross_entropy;
} case_arguments;

typedef struct random_source {
    uint64_t state;
} random_source;

/* A case that can be run: its arguments point to the arrays on the host. */
typedef struct op_case {
    case_spec spec;
    random_source random; /* while it is built */
    case_arguments arguments;
    case_array arrays[CASE_ARRAYS];
} op_case;

/* An operation: a row of case_operations.c. Its arguments begin with `sizes` of the case's. */
typedef struct case_operation {
    const char *name;
    unsigned flags;  /* those that it knows */
    unsigned writes; /* array 0 is only read without these and without dropout; 0: always written */
    int sizes;
    size_t dropout, beta, activation, scale, causal, table_rows; /* offsets; 0: it has none */
    case_array_info arrays[CASE_ARRAYS];
    sl_status (*run)(sl_device *device, const case_arguments *arguments);
    void (*prepare)(op_case *c); /* (optional) other arguments, and GIVEN counts */
    void (*adjust)(op_case *c);  /* (optional) the arrays' values, last */
    /* to[a] of an array that is written holds what was there, or NaN; of others it is NULL. */
    void (*reference)(const op_case *c, double *const *to);

    /* Of an operation that gives gradients: its forward, which is built from the same random
     * numbers, and which arrays belong together. */
    case_kind forward;
    unsigned forward_leaves, forward_has; /* flags that the forward lacks, or has, in any case */
    int output_count, input_count;
    struct {
        int result, grad; /* what forward writes; this one's that has its gradient. -1: a scale */
    } outputs[2];
    struct {
        int input, grad;
    } inputs[4];
} case_operation;

extern const case_operation case_operations[CASE_KINDS];

/* The list: fixed cases, then random ones by the seed. malloc'ed. */
case_spec *case_list(uint64_t seed, size_t *count);

/* Builds the arrays from random numbers of this seed; aborts without memory for them. */
void case_build(const case_spec *spec, uint64_t seed, op_case *out);
void case_free(op_case *c);

/* "gemm 17 x 35 x 64, flags 12, p 0.2" into text, which it returns. */
const char *case_text(const case_spec *spec, char text[CASE_TEXT_BYTES]);

/* What each array holds afterwards, malloc'ed; NULL for those that are not written. */
void case_reference(const op_case *c, double *expected[CASE_ARRAYS]);

/* A case on a device. The arrays lie in the device's memory between load and unload. */
typedef struct loaded_case {
    sl_device *device;
    const op_case *from;
    case_arguments arguments;
    void *memory[CASE_ARRAYS];
} loaded_case;

sl_status case_load(sl_device *device, const op_case *c, loaded_case *out);
sl_status case_run(const loaded_case *c);
sl_status case_read(const loaded_case *c, int array, void *host);
void case_unload(loaded_case *c);

/* The bytes that the operation must read, or write; floating-point operations of its products. */
double case_bytes(const op_case *c, bool writes);
double case_flop(const op_case *c);

uint32_t random_bits(random_source *source);
int64_t random_below(random_source *source, int64_t below); /* 0 … below - 1 */
float random_float(random_source *source);                  /* in [-1, 1) */
size_t case_type_bytes(case_type type);
double case_element(case_type type, const void *values, int64_t index);

/* The arrays of each operation, in the order of its row. */
enum { FLAT_TO, FLAT_FROM, FLAT_OUT };
enum { SGD_VALUE, SGD_GRAD, SGD_MOMENTUM };
enum { ADAMW_VALUE, ADAMW_GRAD, ADAMW_AVERAGE, ADAMW_SQUARES };
enum { GEMM_A, GEMM_B, GEMM_C, GEMM_BIAS, GEMM_PRE };
enum { EPILOGUE_X, EPILOGUE_OUT, EPILOGUE_BIAS, EPILOGUE_PRE };
enum { BACK_GRAD, BACK_SAVED, BACK_GRAD_BIAS };
enum { EMBEDDING_IDS, EMBEDDING_TABLE, EMBEDDING_POSITIONS, EMBEDDING_OUT };
enum { LOOKUP_IDS, LOOKUP_GRAD_TABLE, LOOKUP_GRAD_OUT };
enum { SWIGLU_GATE, SWIGLU_UP, SWIGLU_OUT };
enum { DSWIGLU_GATE, DSWIGLU_UP, DSWIGLU_GRAD_OUT, DSWIGLU_GRAD_GATE, DSWIGLU_GRAD_UP };
enum { ROTARY_X };
enum { DROP_X, DROP_RESIDUAL, DROP_OUT };
enum { NORM_X, NORM_RESIDUAL, NORM_SUM, NORM_OUT, NORM_WEIGHT, NORM_BIAS, NORM_HAT, NORM_RSTD };
enum { DNORM_GRAD_OUT, DNORM_SUM_IN, DNORM_HAT, DNORM_RSTD, DNORM_WEIGHT };
enum { DNORM_GRAD_SUM = DNORM_WEIGHT + 1, DNORM_GRAD_X, DNORM_GRAD_WEIGHT, DNORM_GRAD_BIAS };
enum { HEADS_QKV, HEADS_OUT, HEADS_LSE, HEADS_GRAD_OUT, HEADS_GRAD_QKV };
enum { ENTROPY_LOGITS, ENTROPY_TARGETS, ENTROPY_LOSS, ENTROPY_GRAD_BIAS };

static inline bool case_has(const op_case *c, unsigned flag)
{
    return c->spec.flags & flag;
}

static inline bool case_is_bf16(const op_case *c)
{
    return case_has(c, WITH_BF16) && !case_has(c, WITH_TF32);
}

static inline bool case_is_tf32(const op_case *c)
{
    return case_has(c, WITH_TF32) && !case_has(c, WITH_BF16);
}

/* Of attention: with shared keys, two where they can be fewer than the heads; or one. */
static inline int64_t case_key_heads(const op_case *c)
{
    int64_t heads = c->spec.size[2];
    return !case_has(c, WITH_SHARED_KEYS) ? heads : heads > 2 && heads % 2 == 0 ? 2 : 1;
}

/* Of an embedding's table: few, so that ids come again. */
static inline int64_t case_table_rows(const op_case *c)
{
    return *c->spec.name ? c->spec.size[0] : 17;
}

/* ---- The devices that tests run them on (lab.c) --------------------------------------- */

/* CPUs of every instruction set, each with several thread counts, and one whose table lacks all
 * optional slots; or those that SLUICE_TEST_DEVICES names ("cpu:0"). Devices of one family must
 * give the same bits. */
enum { LAB_FAMILIES = 16, LAB_MEMBERS = 4 };

typedef struct lab_family {
    int count;
    sl_device *members[LAB_MEMBERS];
} lab_family;

typedef struct lab {
    int count;
    lab_family families[LAB_FAMILIES];
    sl_device_list *named; /* NULL: the CPUs */
    uint64_t seed;         /* of all random numbers: SLUICE_TEST_SEED */
    size_t each;           /* case of the list is run: SLUICE_TEST_EACH */
    bool given;            /* the devices are not the CPUs */
} lab;

/* For cmocka's groups; *state is a lab. */
int lab_create(void **state);
int lab_destroy(void **state);

/* Runs the case on every device: it must give the reference's values, the same bits on all of a
 * family, and change nothing that it only reads. */
void check_case(const lab *all, const op_case *c);

/* Runs it on one device and reads the array, malloc'ed. */
void *result_of(sl_device *device, const op_case *c, int array);

#endif
