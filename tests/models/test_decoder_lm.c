/* Decoders against what transformers 5 computes (eager, f32): models/<family>/model.safetensors
 * holds a small one's weights, golden.safetensors its logits, loss, gradients and training. */
#include "models/decoder_lm.h"
#include "models/lora.h"
#include "nn/module.h"
#include "sluice/optim.h"
#include "sluice/safetensors.h"
#include "support/modules.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 2, TIME = 24, TOKENS = SAMPLES * TIME, CLASSES = 97, STEPS = 10 };

static void source_path(char path[4096], const char *family, const char *name)
{
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, 4096, "%s/tests/models/%s/%s", source ? source : ".", family, name);
}

/* ---- The golden ------------------------------------------------------------------------- */

typedef struct golden_file {
    char *bytes;
    json_t *header;
    size_t data; /* where it begins */
} golden_file;

static golden_file open_golden(const char *family, const char *name)
{
    char path[4096];
    uint64_t length;
    golden_file result = {0};
    source_path(path, family, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    result.bytes = malloc(bytes);
    assert_int_equal(fread(result.bytes, 1, bytes, file), bytes);
    fclose(file);
    memcpy(&length, result.bytes, sizeof length);
    result.header = json_loadb(result.bytes + sizeof length, length, 0, NULL);
    assert_non_null(result.header);
    result.data = sizeof length + length;
    return result;
}

static void close_golden(golden_file *golden)
{
    json_decref(golden->header);
    free(golden->bytes);
}

/* Tensor "<prefix><name>"; NULL: there is none. */
static const void *find(const golden_file *golden, const char *prefix, const char *name)
{
    char key[256];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    const json_t *offsets = json_object_get(json_object_get(golden->header, key), "data_offsets");
    return offsets ? golden->bytes + golden->data + json_integer_value(json_array_get(offsets, 0))
                   : NULL;
}

/* The int64 tokens as i32; labels moved to where they are predicted. */
static sl_tensor *tokens_of(const golden_file *golden, sl_device *device, bool labels)
{
    const int64_t *values = find(golden, "", labels ? "labels" : "input_ids");
    int32_t tokens[TOKENS];
    assert_non_null(values);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = !labels               ? (int32_t)values[i]
                    : i % TIME < TIME - 1 ? (int32_t)values[i + 1]
                                          : -100;
    sl_shape shape = sl_shape_2d(SAMPLES, TIME);
    return integer_tensor(device, &shape, tokens);
}

/* ---- The model -------------------------------------------------------------------------- */

typedef struct model_rig {
    const char *family;
    sl_device *device;
    sl_module *model;
    sl_parameter_set *set;
    sl_loss *loss;
    sl_tensor *ids, *targets;
    golden_file golden;
} model_rig;

enum { MOST = 64, NAME = 160 };

/* From the file, whose names have `prefix`: the parameters of adapters, or all others. */
static void load_weights(const model_rig *rig, const char *file, const char *prefix, bool adapters)
{
    char path[4096], names[MOST][NAME];
    sl_safetensors_item items[MOST];
    size_t count = 0;
    for (int i = 0; i < sl_parameter_set_count(rig->set); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(rig->set, i);
        if (sli_is_lora_name(sl_parameter_name(parameter)) != adapters)
            continue;
        assert_true(count < MOST);
        snprintf(names[count], NAME, "%s%s", prefix, sl_parameter_name(parameter));
        items[count] = (sl_safetensors_item){.name = names[count],
                                             .dtype = SL_F32,
                                             .shape = *sl_parameter_shape(parameter),
                                             .data = sl_tensor_f32(sl_parameter_value(parameter))};
        count++;
    }
    source_path(path, rig->family, file);
    check_ok(sl_safetensors_load(path, items, count));
}

/* `adapted` NULL: without adapters. */
static model_rig new_rig(const char *family, const sli_decoder_lm *options,
                         const sl_model_options *adapted)
{
    model_rig rig = {.family = family,
                     .device = new_device(1),
                     .golden = open_golden(family, "golden.safetensors")};
    check_ok(sli_decoder_lm_create(options, &rig.model));
    if (adapted)
        check_ok(sli_model_add_lora(adapted, rig.model));
    check_ok(sl_parameter_set_create(rig.model, 0, 0,
                                     &(sl_parameter_set_options){.device = rig.device}, &rig.set));
    load_weights(&rig, "model.safetensors", "", false);
    if (adapted)
        load_weights(&rig, "lora/adapter_model.safetensors", SLI_ADAPTER_PREFIX, true);
    rig.loss = new_cross_entropy();
    rig.ids = tokens_of(&rig.golden, rig.device, false);
    rig.targets = tokens_of(&rig.golden, rig.device, true);
    return rig;
}

static void end_rig(model_rig *rig)
{
    close_golden(&rig->golden);
    sl_tensor_destroy(&rig->ids);
    sl_tensor_destroy(&rig->targets);
    sl_loss_destroy(&rig->loss);
    sl_parameter_set_destroy(&rig->set);
    sl_module_destroy(&rig->model);
    sl_device_destroy(&rig->device);
}

/* Forward and backward of all rows; gives the mean loss. *logits (NULL: not wanted). */
static double run(model_rig *rig, sl_tensor **logits)
{
    double losses[TOKENS], sum = 0;
    sl_pass *pass;
    sl_tensor *out, *grad;
    int64_t terms = loss_terms(rig->loss, rig->targets);
    check_ok(
        sl_pass_create(&(sl_pass_options){.device = rig->device, .training = true, .keep = true},
                       &pass));
    check_ok(sl_module_forward(rig->model, pass, rig->ids, &out));
    check_ok(sl_loss_apply(rig->loss, &(sl_loss_call){.device = rig->device,
                                                      .in = out,
                                                      .targets = rig->targets,
                                                      .scale = 1.0 / (double)terms,
                                                      .row_losses = losses,
                                                      .grad_in = &grad}));
    check_ok(sl_module_backward(rig->model, pass, grad, NULL));
    for (int i = 0; i < TOKENS; i++)
        sum += losses[i];
    sl_tensor_destroy(&grad);
    sl_pass_destroy(&pass);
    if (logits)
        *logits = out;
    else
        sl_tensor_destroy(&out);
    return sum / (double)terms;
}

/* ---- Comparisons ------------------------------------------------------------------------ */

static double largest(const float *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)values[i]));
    return most;
}

/* The keys' part of c_attn's bias: its gradient is 0 but for rounding. */
static bool is_key_bias(const char *name, int64_t index, int64_t count)
{
    return strstr(name, "c_attn.bias") && index >= count / 3 && index < 2 * count / 3;
}

/* The gradients below this part of the largest are what rounding leaves. More is left of those of
 * the keys' biases whose pairs hardly turn. */
static double rounding_of(const char *name)
{
    return strstr(name, "k_proj.bias") ? 1e-3 : 1e-5;
}

/* Within `bound` of the tensor's largest element. With `where`, only elements whose value there is
 * above what rounding leaves. */
static void check_close(const char *name, const float *values, const float *expected,
                        const float *where, int64_t count, double bound)
{
    double most = largest(expected, count),
           least = where ? rounding_of(name) * largest(where, count) : 0;
    assert_non_null(expected);
    for (int64_t i = 0; i < count; i++)
        if (!is_key_bias(name, i, count) && (!where || fabs((double)where[i]) > least) &&
            !(fabs((double)values[i] - expected[i]) <= bound * most))
            fail_msg("%s[%d] is %.9g, expected %.9g, of at most %.9g", name, (int)i,
                     (double)values[i], (double)expected[i], most);
}

static void logits_loss_and_gradients_match(const char *family, const sli_decoder_lm *options)
{
    model_rig rig = new_rig(family, options, NULL);
    sl_tensor *logits;
    double loss = run(&rig, &logits);
    const float *expected = find(&rig.golden, "", "loss");
    check_close("logits", sl_tensor_f32(logits), find(&rig.golden, "", "logits"), NULL,
                TOKENS * CLASSES, 1e-5);
    assert_true(fabs(loss - (double)*expected) <= 1e-5 * loss);
    for (int i = 0; i < sl_parameter_set_count(rig.set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(rig.set, i);
        const char *name = sl_parameter_name(parameter);
        const sl_tensor *grad = gradient_of(parameter);
        check_close(name, sl_tensor_f32(grad), find(&rig.golden, "grad.", name), NULL,
                    sl_tensor_count(grad), 1e-5);
    }
    sl_tensor_destroy(&logits);
    end_rig(&rig);
}

static void check_training(const char *family, const sli_decoder_lm *options,
                           sl_optimizer_kind kind)
{
    bool is_adamw = kind == SL_OPTIMIZER_ADAMW;
    model_rig rig = new_rig(family, options, NULL);
    const float *expected = find(&rig.golden, "", is_adamw ? "adamw_losses" : "sgd_losses");
    sl_optimizer_options settings = {.kind = kind};
    sl_optimizer *optimizer;
    if (is_adamw) {
        settings.beta2 = 0.95f;
        settings.weight_decay = 0.1f;
    }
    check_ok(sl_optimizer_create(&settings, rig.set, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        sl_parameter_set_zero_grad(rig.set);
        double loss = run(&rig, NULL);
        if (!(fabs(loss - (double)expected[step]) <= 1e-5 * loss))
            fail_msg("the loss of step %d is %.9g, expected %.9g", step, loss,
                     (double)expected[step]);
        check_ok(sl_optimizer_step(optimizer, is_adamw ? 3e-3 : 0.1, 1));
    }
    for (int i = 0; is_adamw && i < sl_parameter_set_count(rig.set); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(rig.set, i);
        const char *name = sl_parameter_name(parameter);
        const sl_tensor *value = sl_parameter_value(parameter);
        check_close(name, sl_tensor_f32(value), find(&rig.golden, "after.", name),
                    find(&rig.golden, "grad.", name), sl_tensor_count(value), 1e-4);
    }
    sl_optimizer_destroy(&optimizer);
    end_rig(&rig);
}

static void check_family(const char *family, const sli_decoder_lm *options)
{
    logits_loss_and_gradients_match(family, options);
    check_training(family, options, SL_OPTIMIZER_ADAMW);
    check_training(family, options, SL_OPTIMIZER_SGD);
}

static sli_decoder_lm gpt2_options(void)
{
    return (sli_decoder_lm){.layer = {.naming = SL_NAMING_GPT2,
                                      .width = 32,
                                      .heads = 4,
                                      .feed_forward = 128,
                                      .activation = SL_ACTIVATION_GELU_TANH,
                                      .qkv_bias = true,
                                      .output_bias = true},
                            .ntokens = CLASSES,
                            .nlayers = 2,
                            .positions = 48,
                            .tie = true};
}

static void gpt2_computes_what_transformers_does(void **state)
{
    const sli_decoder_lm options = gpt2_options();
    check_family("gpt2", &options);
}

static sli_decoder_lm llama_options(void)
{
    return (sli_decoder_lm){.layer = {.naming = SL_NAMING_LLAMA,
                                      .width = 32,
                                      .heads = 4,
                                      .key_heads = 2,
                                      .head_width = 8,
                                      .feed_forward = 56,
                                      .norm_eps = 1e-5f,
                                      .rotary = {.kind = SL_ROTARY_LLAMA3,
                                                 .theta = 10000,
                                                 .factor = 8,
                                                 .low_freq_factor = 1,
                                                 .high_freq_factor = 4,
                                                 .original_positions = 128}},
                            .ntokens = CLASSES,
                            .nlayers = 2,
                            .positions = 48,
                            .tie = true};
}

static void llama3_computes_what_transformers_does(void **state)
{
    const sli_decoder_lm options = llama_options();
    check_family("llama3", &options);
}

static void qwen2_computes_what_transformers_does(void **state)
{
    sli_decoder_lm options = llama_options();
    options.layer.head_width = 0;
    options.layer.norm_eps = 1e-6f;
    options.layer.qkv_bias = true;
    options.layer.rotary = (sl_rotary_options){.kind = SL_ROTARY_DEFAULT, .theta = 1e6};
    check_family("qwen2", &options);
}

/* The adapter in `lora` is PEFT 0.21's. */
static void check_adapter(const char *family, const sli_decoder_lm *options,
                          const sl_model_options *adapted)
{
    model_rig rig = new_rig(family, options, adapted);
    golden_file golden = open_golden(family, "lora/golden.safetensors");
    sl_tensor *logits;
    double loss = run(&rig, &logits);
    const float *expected = find(&golden, "", "loss");
    int trained = 0;
    check_close("logits", sl_tensor_f32(logits), find(&golden, "", "logits"), NULL,
                TOKENS * CLASSES, 1e-5);
    assert_true(fabs(loss - (double)*expected) <= 1e-5 * loss);
    for (int i = 0; i < sl_parameter_set_count(rig.set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(rig.set, i);
        if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
            continue;
        const char *name = sl_parameter_name(parameter);
        const sl_tensor *grad = gradient_of(parameter);
        check_close(name, sl_tensor_f32(grad), find(&golden, "grad." SLI_ADAPTER_PREFIX, name),
                    NULL, sl_tensor_count(grad), 1e-5);
        trained++;
    }
    assert_int_equal(trained, family[0] == 'g' ? 2 * 2 : 2 * 2 * 3);
    sl_tensor_destroy(&logits);
    close_golden(&golden);
    end_rig(&rig);
}

static void adapters_compute_what_peft_does(void **state)
{
    const sli_decoder_lm gpt2 = gpt2_options(), llama = llama_options();
    sl_model_options adapted = {.family = SL_FAMILY_GPT2,
                                .nlayers = 2,
                                .lora = {.adapts = true, .rank = 4, .alpha = 8}};
    check_adapter("gpt2", &gpt2, &adapted);
    adapted.family = SL_FAMILY_LLAMA;
    check_ok(sl_lora_targets_set(&adapted.lora, "q_proj,down_proj,v_proj"));
    check_adapter("llama3", &llama, &adapted);
}

static void qwen3_computes_what_transformers_does(void **state)
{
    sli_decoder_lm options = llama_options();
    options.layer.head_width = 12;
    options.layer.norm_eps = 1e-6f;
    options.layer.qk_norm = true;
    options.layer.rotary = (sl_rotary_options){.kind = SL_ROTARY_DEFAULT, .theta = 1e6};
    check_family("qwen3", &options);
}

/* ---- Rows of several documents ---------------------------------------------------------- */

/* Forward and backward of one row; `numbers` NULL: it is one document. Gives the sum of losses. */
static double run_row(const model_rig *rig, const int32_t *ids, const int32_t *targets,
                      const int32_t *numbers, int64_t length, double scale, float *logits)
{
    double losses[TOKENS], sum = 0;
    sl_shape shape = sl_shape_2d(1, length);
    SCOPED(sl_tensor) *in = integer_tensor(rig->device, &shape, ids),
                      *labels = integer_tensor(rig->device, &shape, targets), *out = NULL;
    sl_tensor *grad;
    sl_pass *pass;
    check_ok(
        sl_pass_create(&(sl_pass_options){.device = rig->device, .training = true, .keep = true},
                       &pass));
    if (numbers) {
        sl_tensor *documents = integer_tensor(rig->device, &shape, numbers);
        check_ok(sli_pass_put_input(pass, SL_DOCUMENTS_INPUT, &documents));
    }
    check_ok(sl_module_forward(rig->model, pass, in, &out));
    check_ok(sl_tensor_read(out, logits));
    check_ok(sl_loss_apply(rig->loss, &(sl_loss_call){.device = rig->device,
                                                      .in = out,
                                                      .targets = labels,
                                                      .scale = scale,
                                                      .row_losses = losses,
                                                      .grad_in = &grad}));
    check_ok(sl_module_backward(rig->model, pass, grad, NULL));
    for (int64_t i = 0; i < length; i++)
        sum += losses[i];
    sl_tensor_destroy(&grad);
    sl_pass_destroy(&pass);
    return sum;
}

static const int document_lengths[] = {11, 1, 7, 5};
enum { DOCUMENTS = 4 };

static void pack_golden(const model_rig *rig, int32_t *ids, int32_t *targets, int32_t *numbers)
{
    const int64_t *tokens = find(&rig->golden, "", "input_ids");
    int place = 0;
    for (int d = 0; d < DOCUMENTS; d++)
        for (int i = 0; i < document_lengths[d]; i++, place++) {
            ids[place] = (int32_t)tokens[place];
            numbers[place] = i;
            targets[place] = i + 1 < document_lengths[d] ? (int32_t)tokens[place + 1] : -100;
        }
    assert_int_equal(place, TIME);
}

/* A row of documents computes what each of them does alone: logits, loss and gradients. */
static void check_packed(const char *family, const sli_decoder_lm *options)
{
    model_rig packed = new_rig(family, options, NULL), alone = new_rig(family, options, NULL);
    int32_t ids[TIME], targets[TIME], numbers[TIME];
    float logits[2][TIME * CLASSES];
    const double scale = 1.0 / (TIME - DOCUMENTS);
    pack_golden(&packed, ids, targets, numbers);
    double loss = run_row(&packed, ids, targets, numbers, TIME, scale, logits[0]), sum = 0;
    for (int d = 0, first = 0; d < DOCUMENTS; first += document_lengths[d++])
        sum += run_row(&alone, ids + first, targets + first, NULL, document_lengths[d], scale,
                       logits[1] + (int64_t)first * CLASSES);
    assert_true(fabs(loss - sum) <= 2e-6 * sum);
    check_close("logits", logits[0], logits[1], NULL, TIME * CLASSES, 2e-6);
    for (int i = 0; i < sl_parameter_set_count(packed.set); i++) {
        sl_parameter *one = sl_parameter_set_get(packed.set, i);
        const sl_tensor *grad = gradient_of(one),
                        *expected = gradient_of(sl_parameter_set_get(alone.set, i));
        check_close(sl_parameter_name(one), sl_tensor_f32(grad), sl_tensor_f32(expected), NULL,
                    sl_tensor_count(grad), 2e-6);
    }
    end_rig(&packed);
    end_rig(&alone);
}

static void packed_documents_compute_what_they_do_alone(void **state)
{
    sli_decoder_lm options = gpt2_options();
    check_packed("gpt2", &options);
    options = llama_options();
    check_packed("llama3", &options);
    options.layer.head_width = 12;
    options.layer.norm_eps = 1e-6f;
    options.layer.qk_norm = true;
    options.layer.rotary = (sl_rotary_options){.kind = SL_ROTARY_DEFAULT, .theta = 1e6};
    check_packed("qwen3", &options);
}

/* transformers with its own mask for packed rows. */
static void packed_documents_compute_what_transformers_does(void **state)
{
    const sli_decoder_lm options = llama_options();
    model_rig rig = new_rig("llama3", &options, NULL);
    const int64_t *ids = find(&rig.golden, "", "packed_ids"),
                  *labels = find(&rig.golden, "", "packed_labels"),
                  *positions = find(&rig.golden, "", "packed_positions");
    const float *expected = find(&rig.golden, "", "packed_loss");
    int32_t row[3][TIME];
    float logits[TIME * CLASSES];
    int terms = 0;
    for (int i = 0; i < TIME; i++) {
        bool is_last = i + 1 == TIME || positions[i + 1] == 0;
        row[0][i] = (int32_t)ids[i];
        row[1][i] = is_last ? -100 : (int32_t)labels[i + 1];
        row[2][i] = (int32_t)positions[i];
        terms += row[1][i] != -100;
    }
    double loss = run_row(&rig, row[0], row[1], row[2], TIME, 1, logits) / terms;
    check_close("logits", logits, find(&rig.golden, "", "packed_logits"), NULL, TIME * CLASSES,
                1e-5);
    if (!(fabs(loss - (double)*expected) <= 1e-5 * loss))
        fail_msg("the loss is %.9g, expected %.9g", loss, (double)*expected);
    end_rig(&rig);
}

static void impossible_documents_are_refused(void **state)
{
    const sli_decoder_lm options = llama_options();
    model_rig rig = new_rig("llama3", &options, NULL);
    const struct {
        int64_t rows, columns;
        int32_t numbers[4];
        const char *sentence;
    } cases[] = {
        {2,
         2,
         {0, 1, 1, 0},
         "must begin each row with 0 and count up, or begin anew with 0, got 1 at [1, 0]"},
        {2, 2, {0, 2, 0, 1}, "got 2 at [0, 1]"},
        {1, 4, {0, 1, 2, 3}, "is of 1 rows of 4 positions, but these are 2 of 24"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_shape shape = sl_shape_2d(cases[i].rows, cases[i].columns);
        sl_tensor *documents = integer_tensor(rig.device, &shape, cases[i].numbers), *out = NULL;
        sl_pass *pass;
        check_ok(sl_pass_create(&(sl_pass_options){.device = rig.device}, &pass));
        sl_status status = sli_pass_put_input(pass, SL_DOCUMENTS_INPUT, &documents);
        if (status == SL_OK)
            status = sl_module_forward(rig.model, pass, rig.ids, &out);
        check_error(status, SL_ERR_INVALID, cases[i].sentence);
        sl_tensor_destroy(&out);
        sl_pass_destroy(&pass);
    }
    end_rig(&rig);
}

static void impossible_sizes_are_refused(void **state)
{
    sli_decoder_lm options = gpt2_options();
    sl_module *model;
    options.nlayers = 0;
    check_error(sli_decoder_lm_create(&options, &model), SL_ERR_INVALID,
                "nlayers must be 1 to 10000, got 0");
    options = gpt2_options();
    options.layer.heads = 5;
    check_error(sli_decoder_lm_create(&options, &model), SL_ERR_INVALID, "5 heads and a width");
    assert_null(model);
}

int decoder_lm_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_computes_what_transformers_does),
        cmocka_unit_test(llama3_computes_what_transformers_does),
        cmocka_unit_test(qwen2_computes_what_transformers_does),
        cmocka_unit_test(adapters_compute_what_peft_does),
        cmocka_unit_test(qwen3_computes_what_transformers_does),
        cmocka_unit_test(packed_documents_compute_what_they_do_alone),
        cmocka_unit_test(packed_documents_compute_what_transformers_does),
        cmocka_unit_test(impossible_documents_are_refused),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
