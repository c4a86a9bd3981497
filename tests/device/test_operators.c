/* Every case of the list on every device, and every gradient against differences of its forward. */
#include "device/cases.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_spec(const lab *all, const case_spec *spec)
{
    op_case c;
    case_build(spec, all->seed, &c);
    check_case(all, &c);
    case_free(&c);
}

/* Each case, or of each kind the first and those whose numbers `each` divides. */
static void every_case_matches_the_reference_on_every_device(void **state)
{
    const lab *all = *state;
    size_t count, run = 0;
    FREED case_spec *list = case_list(all->seed, &count);
    bool seen[CASE_KINDS] = {false};
    for (size_t i = 0; i < count; i++) {
        if (*list[i].name || (seen[list[i].kind] && i % all->each > 0))
            continue;
        seen[list[i].kind] = true;
        check_spec(all, &list[i]);
        run++;
    }
    for (int kind = 0; kind < CASE_KINDS; kind++)
        assert_true(seen[kind]);
    print_message("%zu cases on %d families of devices\n", run, all->count);
}

/* Of all kernels, those of bf16 attention alone have smaller blocks for GPUs of less memory. */
static void bf16_attention_matches_the_reference_in_small_blocks(void **state)
{
    const lab *all = *state;
    size_t count;
    FREED case_spec *list = case_list(all->seed, &count);
    int run[CASE_KINDS] = {0};
    for (size_t i = 0; i < count; i++) {
        case_kind kind = list[i].kind;
        bool is_bf16 = list[i].flags & WITH_BF16 && !(list[i].flags & WITH_TF32);
        bool is_attention = kind == CASE_ATTENTION || kind == CASE_ATTENTION_BACKWARD;
        if (!is_attention || !is_bf16 || *list[i].name)
            continue;
        check_spec(all, &list[i]);
        run[kind]++;
    }
    assert_true(run[CASE_ATTENTION] > 10 && run[CASE_ATTENTION_BACKWARD] > 10);
}

/* ---- Gradients -------------------------------------------------------------------------- */

/* What forward writes is made a number: the sum of its elements, each times its gradient, which is
 * an array of the backward's case. The number's slope along a random direction of an input must be
 * the scalar product of the direction and of the gradient that backward gives. */
typedef struct slope {
    sl_device *device;
    op_case forward, backward;
} slope;

static double weighted_sum(const slope *s)
{
    const case_operation *operation = &case_operations[s->backward.spec.kind];
    double sum = 0;
    for (int o = 0; o < operation->output_count; o++) {
        int result = operation->outputs[o].result, grad = operation->outputs[o].grad;
        const float *weights = grad < 0 ? NULL : s->backward.arrays[grad].host;
        if (!s->forward.arrays[result].host || (grad >= 0 && !weights))
            continue;
        case_type type = case_operations[s->forward.spec.kind].arrays[result].type;
        float scale = grad < 0 ? s->backward.arguments.cross_entropy.grad_scale : 1;
        FREED void *values = result_of(s->device, &s->forward, result);
        for (int64_t i = 0; i < s->forward.arrays[result].count; i++)
            sum += (double)scale * case_element(type, values, i) * (weights ? weights[i] : 1);
    }
    return sum;
}

/* At `from` and a step along the direction; leaves the input as it was. */
static double sum_along(slope *s, int input, const float *direction, float step)
{
    case_array *array = &s->forward.arrays[input];
    size_t bytes = (size_t)array->count * sizeof(float);
    float *before = memcpy(malloc(bytes), array->host, bytes), *values = array->host;
    for (int64_t i = 0; i < array->count; i++)
        values[i] += step * direction[i];
    double sum = weighted_sum(s);
    memcpy(values, before, bytes);
    free(before);
    return sum;
}

static void check_input(slope *s, int input, int grad)
{
    const float step = 0.01f;
    const case_spec *spec = &s->backward.spec;
    const case_operation *operation = &case_operations[spec->kind];
    int64_t count = s->forward.arrays[input].count;
    const float *before = s->backward.arrays[grad].host;
    bool adds = operation->arrays[grad].is_sum ? before[0] == before[0]
                                               : spec->kind == CASE_EMBEDDING_BACKWARD;
    FREED float *gradient = result_of(s->device, &s->backward, grad);
    if (!gradient)
        return; /* another lies over it, which is checked */
    FREED float *direction = malloc((size_t)count * sizeof *direction);
    random_source random = {(uint64_t)count};
    double along = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        direction[i] = random_float(&random);
        double term = direction[i] * (gradient[i] - (adds ? (double)before[i] : 0));
        along += term;
        squares += term * term;
    }
    double steepness =
        (sum_along(s, input, direction, step) - sum_along(s, input, direction, -step)) /
        (2 * (double)step);
    char text[CASE_TEXT_BYTES];
    if (!(fabs(steepness - along) <= 0.02 * sqrt(squares) + 1e-4))
        fail_msg("%s on %s: slope along %s: %g by differences, %g by the gradient (of size %g)",
                 case_text(spec, text), sl_device_name(s->device), operation->arrays[grad].name,
                 steepness, along, sqrt(squares));
}

/* The forward is built from the same random numbers. */
static void check_gradients(const lab *all, const case_spec *spec)
{
    const case_operation *operation = &case_operations[spec->kind];
    case_spec forward = *spec;
    slope s;
    forward.kind = operation->forward;
    forward.flags = (spec->flags & ~operation->forward_leaves) | operation->forward_has;
    case_build(spec, all->seed, &s.backward);
    case_build(&forward, all->seed, &s.forward);
    for (int f = 0; f < all->count; f++)
        for (int i = 0; i < operation->input_count; i++) {
            int input = operation->inputs[i].input, grad = operation->inputs[i].grad;
            s.device = all->families[f].members[0];
            if (s.forward.arrays[input].host && s.backward.arrays[grad].host &&
                s.backward.arrays[grad].count > 0)
                check_input(&s, input, grad);
        }
    case_free(&s.forward);
    case_free(&s.backward);
}

/* Of all cases on CPUs, of few on other devices: they match the reference that the CPUs match. */
static void every_gradient_is_the_slope_of_its_forward(void **state)
{
    skip_if_sanitized();
    const lab *all = *state;
    size_t count, each = all->given ? 7 : all->each;
    FREED case_spec *list = case_list(all->seed, &count);
    int checked[CASE_KINDS] = {0};
    for (size_t i = 0; i < count; i++) {
        const case_operation *operation = &case_operations[list[i].kind];
        unsigned flags = list[i].flags;
        bool gives = operation->output_count > 0 && !(flags & WITH_WIDE_VALUES);
        gives &= list[i].kind != CASE_CROSS_ENTROPY || flags & WITH_GRADIENT;
        gives &= list[i].kind != CASE_ADD_NORM_BACKWARD || list[i].size[1] > 16; /* too crooked */
        gives &= list[i].kind != CASE_ATTENTION_BACKWARD || !(flags & (WITH_BF16 | WITH_TF32));
        gives &= list[i].kind != CASE_ADD_DROPOUT || !(flags & WITH_RESIDUAL);
        if (!gives || *list[i].name || (checked[list[i].kind] && i % each > 0))
            continue;
        check_gradients(all, &list[i]);
        checked[list[i].kind]++;
    }
    for (int kind = 0; kind < CASE_KINDS; kind++)
        assert_true(case_operations[kind].output_count == 0 || checked[kind] > 0);
}

int operators_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_matches_the_reference_on_every_device),
        cmocka_unit_test(every_gradient_is_the_slope_of_its_forward),
    };
    const struct CMUnitTest small_blocks[] = {
        cmocka_unit_test(bf16_attention_matches_the_reference_in_small_blocks),
    };
    if (getenv("SLUICE_TEST_SHARED_BYTES"))
        return cmocka_run_group_tests(small_blocks, lab_create, lab_destroy);
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
