/* A model's sizes and tensors in a GGUF file, by llama.cpp's names. Rows of q and k are in pairs
 * for rotary positions there in the family "llama", and in halves in sluice as in transformers;
 * GPT-2's matrices are [in, out] here and [out, in] there. */
#include "core/error.h"
#include "train/checkpoint/checkpoints.h"
#include "train/checkpoint/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const sl_gguf_type_names[] = {"f32", "f16", "bf16", "q8_0", NULL};

static const sli_gguf_type type_in_file[] = {[SL_GGUF_F32] = SLI_GGUF_F32,
                                             [SL_GGUF_F16] = SLI_GGUF_F16,
                                             [SL_GGUF_BF16] = SLI_GGUF_BF16,
                                             [SL_GGUF_Q8_0] = SLI_GGUF_Q8_0};

enum { NAME_BYTES = 128 };

/* ---- Names ------------------------------------------------------------------------------ */

typedef struct renaming {
    const char *from, *to;
} renaming;

static const renaming outer[] = {{"model.embed_tokens", "token_embd"},
                                 {"model.norm", "output_norm"},
                                 {"lm_head", "output"},
                                 {"transformer.wte", "token_embd"},
                                 {"transformer.wpe", "position_embd"},
                                 {"transformer.ln_f", "output_norm"}};
static const renaming inner[] = {{"input_layernorm", "attn_norm"},
                                 {"post_attention_layernorm", "ffn_norm"},
                                 {"self_attn.q_proj", "attn_q"},
                                 {"self_attn.k_proj", "attn_k"},
                                 {"self_attn.v_proj", "attn_v"},
                                 {"self_attn.o_proj", "attn_output"},
                                 {"self_attn.q_norm", "attn_q_norm"},
                                 {"self_attn.k_norm", "attn_k_norm"},
                                 {"mlp.gate_proj", "ffn_gate"},
                                 {"mlp.up_proj", "ffn_up"},
                                 {"mlp.down_proj", "ffn_down"},
                                 {"ln_1", "attn_norm"},
                                 {"ln_2", "ffn_norm"},
                                 {"attn.c_attn", "attn_qkv"},
                                 {"attn.c_proj", "attn_output"},
                                 {"mlp.c_fc", "ffn_up"},
                                 {"mlp.c_proj", "ffn_down"}};

static const char *find_name(const renaming *list, size_t count, const char *from, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i].from) == bytes && memcmp(list[i].from, from, bytes) == 0)
            return list[i].to;
    return NULL;
}

/* The name behind "model.layers.3.", and that number; NULL: it does not begin so. */
static const char *behind_layer(const char *name, long *layer)
{
    static const char *const begins[] = {"model.layers.", "transformer.h."};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        size_t bytes = strlen(begins[i]);
        char *end;
        if (strncmp(name, begins[i], bytes) != 0)
            continue;
        *layer = strtol(name + bytes, &end, 10);
        return *end == '.' ? end + 1 : NULL;
    }
    return NULL;
}

/* Of "model.layers.3.mlp.up_proj.weight": "blk.3.ffn_up.weight". */
static sl_status rename_tensor(const char *name, char to[NAME_BYTES])
{
    long layer = 0;
    const char *dot = strrchr(name, '.'), *own = behind_layer(name, &layer), *found = NULL;
    if (dot && own && own < dot) {
        found = find_name(inner, sizeof inner / sizeof *inner, own, (size_t)(dot - own));
        if (found)
            snprintf(to, NAME_BYTES, "blk.%ld.%s%s", layer, found, dot);
    } else if (dot) {
        found = find_name(outer, sizeof outer / sizeof *outer, name, (size_t)(dot - name));
        if (found)
            snprintf(to, NAME_BYTES, "%s%s", found, dot);
    }
    return found ? SL_OK
                 : sl_error(SL_ERR_UNSUPPORTED, "tensor \"%s\" has no name in GGUF files", name);
}

/* ---- Tensors ---------------------------------------------------------------------------- */

typedef struct exporting {
    const sl_model_options *model;
    sl_gguf_type type;
    sli_gguf *file;
    sli_tensors tensors;
} exporting;

/* GPT-2's layers, whose file has [in, out]. */
static bool is_transposed(const exporting *job, const sl_safetensors_item *item)
{
    return job->model->family == SL_FAMILY_GPT2 && item->shape.dims == 2 &&
           strstr(item->name, ".c_") != NULL;
}

/* How many heads' rows change places; 0: none do. */
static int64_t paired_heads(const exporting *job, const char *name)
{
    const sl_model_options *model = job->model;
    if (model->family != SL_FAMILY_LLAMA && model->family != SL_FAMILY_MISTRAL)
        return 0;
    if (strstr(name, ".q_proj."))
        return model->nhead;
    return strstr(name, ".k_proj.") ? model->decoder.key_heads : 0;
}

static sl_shape shape_in_file(const exporting *job, const sl_safetensors_item *item)
{
    return is_transposed(job, item) ? sl_shape_2d(item->shape.size[1], item->shape.size[0])
                                    : item->shape;
}

/* Norms, biases and positions stay f32, as in llama.cpp's own conversions, and rows that are no
 * multiple of a block are f16 instead of Q8_0. */
static sli_gguf_type choose_type(const exporting *job, const char *name, const sl_shape *shape)
{
    if (shape->dims < 2 || strcmp(name, "position_embd.weight") == 0)
        return SLI_GGUF_F32;
    if (job->type == SL_GGUF_Q8_0 && shape->size[shape->dims - 1] % SLI_GGUF_BLOCK != 0)
        return SLI_GGUF_F16;
    return type_in_file[job->type];
}

/* Row i of a head's first half and row i of its second become rows 2 i and 2 i + 1. */
static void pair_rows(const float *from, int64_t heads, int64_t rows, int64_t columns, float *to)
{
    int64_t width = rows / heads;
    for (int64_t row = 0; row < rows; row++) {
        int64_t head = row / width, place = row % width;
        int64_t half = place / (width / 2), index = place % (width / 2);
        memcpy(to + (head * width + 2 * index + half) * columns, from + row * columns,
               (size_t)columns * sizeof *to);
    }
}

static sl_status write_tensor(const exporting *job, size_t index)
{
    const sl_safetensors_item *item = &job->tensors.items[index];
    int64_t heads = paired_heads(job, item->name), rows = item->shape.size[0];
    int64_t count = sl_shape_count(&item->shape);
    if (heads == 0 && !is_transposed(job, item))
        return sli_gguf_write(job->file, index, item->data);
    float *changed = malloc((size_t)count * sizeof *changed);
    if (!changed)
        return sli_no_memory(NULL, "a tensor of %" PRId64 " numbers", count);
    if (heads > 0)
        pair_rows(item->data, heads, rows, count / rows, changed);
    else
        sli_transpose(item->data, rows, count / rows, changed);
    sl_status status = sli_gguf_write(job->file, index, changed);
    free(changed);
    return status;
}

/* ---- Sizes ------------------------------------------------------------------------------ */

static const char *architecture_of(sl_family family)
{
    switch (family) {
    case SL_FAMILY_GPT2:
        return "gpt2";
    case SL_FAMILY_LLAMA:
    case SL_FAMILY_MISTRAL:
        return "llama";
    case SL_FAMILY_QWEN2:
        return "qwen2";
    case SL_FAMILY_QWEN3:
        return "qwen3";
    case SL_FAMILY_TUTORIALS:
    case SL_FAMILY_SMOLLM3:
        break;
    }
    return NULL;
}

static const char *write_key(const exporting *job, const char *name, char key[NAME_BYTES])
{
    snprintf(key, NAME_BYTES, "%s.%s", architecture_of(job->model->family), name);
    return key;
}

static void add_number(const exporting *job, const char *name, int64_t value)
{
    char key[NAME_BYTES];
    sli_gguf_add_number(job->file, write_key(job, name, key), (uint32_t)value);
}

static void add_float(const exporting *job, const char *name, double value)
{
    char key[NAME_BYTES];
    sli_gguf_add_float(job->file, write_key(job, name, key), (float)value);
}

static void add_rotary(const exporting *job)
{
    const sl_decoder_options *decoder = &job->model->decoder;
    char key[NAME_BYTES];
    add_float(job, "rope.freq_base", decoder->rotary.theta);
    add_number(job, "rope.dimension_count", decoder->head_width);
    if (decoder->rotary.kind != SL_ROTARY_LINEAR)
        return; /* the divisors of llama3 are a tensor */
    sli_gguf_add_text(job->file, write_key(job, "rope.scaling.type", key), "linear");
    add_float(job, "rope.scaling.factor", decoder->rotary.factor);
}

static void add_sizes(const exporting *job)
{
    static const uint32_t file_types[] = {
        [SL_GGUF_F32] = 0, [SL_GGUF_F16] = 1, [SL_GGUF_BF16] = 32, [SL_GGUF_Q8_0] = 7};
    const sl_model_options *model = job->model;
    bool is_gpt2 = model->family == SL_FAMILY_GPT2;
    sli_gguf_add_text(job->file, "general.architecture", architecture_of(model->family));
    sli_gguf_add_number(job->file, "general.file_type", file_types[job->type]);
    sli_gguf_add_number(job->file, "general.quantization_version", 2);
    add_number(job, "context_length", model->decoder.positions);
    add_number(job, "embedding_length", model->emsize);
    add_number(job, "block_count", model->nlayers);
    add_number(job, "feed_forward_length", model->nhid);
    add_number(job, "attention.head_count", model->nhead);
    add_number(job, "vocab_size", model->ntokens);
    add_float(job, is_gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
              model->decoder.norm_eps);
    if (is_gpt2)
        return;
    add_number(job, "attention.head_count_kv", model->decoder.key_heads);
    add_number(job, "attention.key_length", model->decoder.head_width);
    add_number(job, "attention.value_length", model->decoder.head_width);
    add_rotary(job);
}

/* What each frequency of llama3's scaling is divided by, as in sl_rotary_options: [*count], to be
 * freed. */
static sl_status make_divisors(const sl_decoder_options *decoder, float **out, int64_t *count)
{
    const double turn = 2 * acos(-1);
    const sl_rotary_options *rotary = &decoder->rotary;
    *count = decoder->head_width / 2;
    *out = malloc((size_t)*count * sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "%" PRId64 " divisors", *count);
    for (int64_t i = 0; i < *count; i++) {
        double wave = turn * pow(rotary->theta, 2.0 * (double)i / (double)decoder->head_width);
        double turns = (double)rotary->original_positions / wave;
        double smooth = (turns - rotary->low_freq_factor) /
                        (rotary->high_freq_factor - rotary->low_freq_factor);
        smooth = fmin(fmax(smooth, 0), 1);
        (*out)[i] = (float)(1 / ((1 - smooth) / rotary->factor + smooth));
    }
    return SL_OK;
}

/* ---- The file --------------------------------------------------------------------------- */

static sl_status write_all(exporting *job, const float *divisors)
{
    SL_TRY(sli_gguf_begin(job->file));
    for (size_t i = 0; i < job->tensors.count; i++)
        SL_TRY(sl_error_context(write_tensor(job, i), "%s: ", job->tensors.items[i].name));
    if (divisors)
        SL_TRY(sli_gguf_write(job->file, job->tensors.count, divisors));
    return sli_gguf_commit(job->file);
}

static sl_status export_file(exporting *job, const sl_vocab *vocab)
{
    float *divisors = NULL;
    int64_t count = 0;
    add_sizes(job);
    SL_TRY(sli_gguf_add_tokenizer(job->file, job->model, vocab));
    for (size_t i = 0; i < job->tensors.count; i++) {
        char name[NAME_BYTES];
        sl_shape shape = shape_in_file(job, &job->tensors.items[i]);
        SL_TRY(rename_tensor(job->tensors.items[i].name, name));
        sli_gguf_add_tensor(job->file, name, &shape, choose_type(job, name, &shape));
    }
    if (job->model->decoder.rotary.kind == SL_ROTARY_LLAMA3) {
        SL_TRY(make_divisors(&job->model->decoder, &divisors, &count));
        const sl_shape shape = {.dims = 1, .size = {count}};
        sli_gguf_add_tensor(job->file, "rope_freqs.weight", &shape, SLI_GGUF_F32);
    }
    sl_status status = write_all(job, divisors);
    free(divisors);
    return status;
}

sl_status sl_model_export_gguf(const sl_pipe *pipe, const sl_model_options *model,
                               const sl_vocab *vocab, sl_gguf_type type, const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(path);
    exporting job = {.model = model, .type = type};
    const sl_group *group = sl_pipe_group(pipe);
    if (!architecture_of(model->family))
        return sl_error(SL_ERR_UNSUPPORTED,
                        "a GGUF file is written for gpt2, llama, mistral, qwen2 and qwen3, and the "
                        "model is of %s",
                        sl_family_names[model->family]);
    if (group && sl_group_size(group) > 1)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "a GGUF file is written by one process, but there are %d",
                        sl_group_size(group));
    sl_status status;
    SL_TRY_OR_FAIL(sli_tensors_of_model(pipe, &job.tensors));
    SL_TRY_OR_FAIL(sli_adapter_select(&job.tensors, false));
    SL_TRY_OR_FAIL(sli_tensors_open(&job.tensors, true));
    SL_TRY_OR_FAIL(sli_tensors_need_f32(&job.tensors));
    SL_TRY_OR_FAIL(sli_gguf_create(path, &job.file));
    status = export_file(&job, vocab);
fail:
    sli_gguf_destroy(&job.file);
    sli_tensors_clear(&job.tensors);
    return status;
}
