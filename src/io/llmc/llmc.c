/* llm.c's file of a GPT-2: what its header says, as a table of tensors. */
#define _GNU_SOURCE /* asprintf */
#include "io/llmc/llmc.h"

#include "core/dtype.h"
#include "core/error.h"
#include "core/file.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, HEADER_NUMBERS = 256 };
enum { MOST_LAYERS = 10000, MOST_CHANNELS = 1 << 20 }; /* as sluice's models have them */

/* ---- The tensors ------------------------------------------------------------------------ */

/* Sizes of a kind, in numbers of channels; columns 0: it is a vector. Rows 0: a row for each token
 * or position. */
static const struct kind {
    const char *name;
    bool is_of_layers;
    int rows, columns;
} kinds[SLI_LLMC_KINDS] = {{"wte.weight", false, 0, 1},        {"wpe.weight", false, 0, 1},
                           {"ln_1.weight", true, 1, 0},        {"ln_1.bias", true, 1, 0},
                           {"attn.c_attn.weight", true, 3, 1}, {"attn.c_attn.bias", true, 3, 0},
                           {"attn.c_proj.weight", true, 1, 1}, {"attn.c_proj.bias", true, 1, 0},
                           {"ln_2.weight", true, 1, 0},        {"ln_2.bias", true, 1, 0},
                           {"mlp.c_fc.weight", true, 4, 1},    {"mlp.c_fc.bias", true, 4, 0},
                           {"mlp.c_proj.weight", true, 1, 4},  {"mlp.c_proj.bias", true, 1, 0},
                           {"ln_f.weight", false, 1, 0},       {"ln_f.bias", false, 1, 0}};
enum { WTE = 0 };

static const char padding_name[] = "transformer.wte.padding";

int64_t sli_llmc_count(const sli_llmc_sizes *sizes, int kind)
{
    return kinds[kind].is_of_layers ? sizes->layers : 1;
}

void sli_llmc_name(int kind, int64_t index, char name[SLI_LLMC_NAME_BYTES])
{
    if (kinds[kind].is_of_layers)
        snprintf(name, SLI_LLMC_NAME_BYTES, "transformer.h.%" PRId64 ".%s", index,
                 kinds[kind].name);
    else
        snprintf(name, SLI_LLMC_NAME_BYTES, "transformer.%s", kinds[kind].name);
}

sl_shape sli_llmc_shape(const sli_llmc_sizes *sizes, int kind)
{
    int64_t rows = kinds[kind].rows * sizes->channels;
    if (kinds[kind].rows == 0)
        rows = kind == WTE ? sizes->padded_vocab : sizes->positions;
    if (kinds[kind].columns == 0)
        return sl_shape_1d(rows);
    return sl_shape_2d(rows, kinds[kind].columns * sizes->channels);
}

bool sli_llmc_is_transposed(const char *name)
{
    size_t length = strlen(name);
    for (int k = 0; k < SLI_LLMC_KINDS; k++) {
        size_t end = strlen(kinds[k].name);
        if (kinds[k].is_of_layers && kinds[k].columns > 0 && length > end &&
            name[length - end - 1] == '.' && strcmp(name + length - end, kinds[k].name) == 0)
            return true;
    }
    return false;
}

/* ---- The header ------------------------------------------------------------------------- */

void sli_llmc_print_header(const sli_llmc_sizes *sizes, int32_t header[SLI_LLMC_HEADER_BYTES / 4])
{
    memset(header, 0, SLI_LLMC_HEADER_BYTES);
    header[0] = MAGIC;
    header[1] = sizes->dtype == SL_BF16 ? VERSION_BF16 : VERSION_F32;
    header[2] = (int32_t)sizes->positions;
    header[3] = (int32_t)sizes->vocab;
    header[4] = (int32_t)sizes->layers;
    header[5] = (int32_t)sizes->heads;
    header[6] = (int32_t)sizes->channels;
    header[7] = (int32_t)sizes->padded_vocab;
}

static sl_status parse_header(const int32_t header[HEADER_NUMBERS], sli_llmc_sizes *out)
{
    static const struct {
        const char *name;
        int32_t most;
    } sizes[] = {{"max_seq_len", INT32_MAX},  {"vocab_size", INT32_MAX},
                 {"num_layers", MOST_LAYERS}, {"num_heads", MOST_CHANNELS},
                 {"channels", MOST_CHANNELS}, {"padded_vocab_size", INT32_MAX}};
    const int32_t *found = header + 2;
    if (header[1] != VERSION_F32 && header[1] != VERSION_BF16)
        return sl_error(SL_ERR_FORMAT,
                        "it is a model of llm.c in version %" PRId32
                        ", and version %d (f32) or %d (bf16) is read",
                        header[1], VERSION_F32, VERSION_BF16);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (found[i] < 1 || found[i] > sizes[i].most)
            return sl_error(SL_ERR_FORMAT,
                            "its header says %s %" PRId32 ", which must be 1 to %" PRId32,
                            sizes[i].name, found[i], sizes[i].most);
    *out = (sli_llmc_sizes){found[0],
                            found[1],
                            found[2],
                            found[3],
                            found[4],
                            found[5],
                            header[1] == VERSION_BF16 ? SL_BF16 : SL_F32};
    if (out->channels % out->heads != 0)
        return sl_error(SL_ERR_FORMAT,
                        "its header says channels %" PRId64 ", which must be a multiple of "
                        "num_heads %" PRId64,
                        out->channels, out->heads);
    return out->padded_vocab >= out->vocab
               ? SL_OK
               : sl_error(SL_ERR_FORMAT,
                          "its header says padded_vocab_size %" PRId64 ", less than vocab_size "
                          "%" PRId64,
                          out->padded_vocab, out->vocab);
}

/* The sizes are bounded so that the sum has fewer than 63 bits. */
static uint64_t bytes_of(const sli_llmc_sizes *sizes)
{
    uint64_t elements = 0;
    for (int k = 0; k < SLI_LLMC_KINDS; k++) {
        sl_shape shape = sli_llmc_shape(sizes, k);
        elements += (uint64_t)sl_shape_count(&shape) * (uint64_t)sli_llmc_count(sizes, k);
    }
    return elements * sl_dtype_bytes(sizes->dtype);
}

/* ---- Opening ---------------------------------------------------------------------------- */

bool sli_llmc_is_file(const char *path)
{
    const int32_t expected = MAGIC;
    int32_t found = 0;
    struct stat about;
    bool is_regular = stat(path, &about) == 0 && S_ISREG(about.st_mode);
    FILE *file = is_regular ? fopen(path, "rbe") : NULL; /* opening a pipe would wait */
    bool is_read = file && fread(&found, sizeof found, 1, file) == 1;
    if (file)
        fclose(file);
    return is_read && found == expected;
}

/* What is added to a header, and how much of its memory is used so far. */
typedef struct header_filling {
    sli_safetensors_header *header;
    const sli_safetensors_dtype *dtype;
    char *names;
    uint64_t end;
} header_filling;

/* Adds a tensor behind the others; `size` is kept. */
static void add_tensor(header_filling *filling, const char *name, int dims, const int64_t *size)
{
    sli_safetensors_entry *entry = &filling->header->entries[filling->header->count++];
    *entry = (sli_safetensors_entry){.info = {.name = filling->names,
                                              .type_name = filling->dtype->name,
                                              .readable = true,
                                              .dtype = filling->dtype->dtype,
                                              .dims = dims,
                                              .size = size},
                                     .begin = filling->end};
    bool is_possible = sli_safetensors_bytes(dims, size, filling->dtype->bits, &entry->info.bytes);
    assert(is_possible);
    (void)is_possible;
    filling->names = stpcpy(filling->names, name) + 1;
    filling->end += entry->info.bytes;
}

/* The shapes of a kind are one; `size` [2]. */
static void add_kind(header_filling *filling, const sli_llmc_sizes *sizes, int kind, int64_t *size)
{
    char name[SLI_LLMC_NAME_BYTES];
    sl_shape shape = sli_llmc_shape(sizes, kind);
    memcpy(size, shape.size, 2 * sizeof *size);
    if (kind == WTE)
        size[0] = sizes->vocab;
    for (int64_t i = 0; i < sli_llmc_count(sizes, kind); i++) {
        sli_llmc_name(kind, i, name);
        add_tensor(filling, name, shape.dims, size);
    }
}

static sl_status fill_header(sli_safetensors_header *header, const sli_llmc_sizes *sizes)
{
    enum { SHAPES = SLI_LLMC_KINDS + 1 };
    size_t count = 1;
    for (int k = 0; k < SLI_LLMC_KINDS; k++)
        count += (size_t)sli_llmc_count(sizes, k);
    header->sizes = calloc((size_t)SHAPES * 2, sizeof *header->sizes);
    header->entries = calloc(count, sizeof *header->entries);
    header->strings = malloc(count * SLI_LLMC_NAME_BYTES);
    if (!header->sizes || !header->entries || !header->strings)
        return sli_no_memory(NULL, "the table of %zu tensors", count);
    header_filling to = {header, sli_safetensors_dtype_of(sizes->dtype), header->strings, 0};
    for (int k = 0; k < SLI_LLMC_KINDS; k++) {
        int64_t *size = header->sizes + (size_t)2 * (size_t)k;
        add_kind(&to, sizes, k, size);
        if (k == WTE && sizes->padded_vocab > sizes->vocab) {
            int64_t *padding = header->sizes + (size_t)2 * SLI_LLMC_KINDS;
            padding[0] = sizes->padded_vocab - sizes->vocab;
            padding[1] = sizes->channels;
            add_tensor(&to, padding_name, 2, padding);
        }
    }
    return sli_safetensors_sort_names(header);
}

static sl_status check_length(uint64_t file_bytes, const sli_llmc_sizes *sizes)
{
    uint64_t expected = SLI_LLMC_HEADER_BYTES + bytes_of(sizes);
    if (file_bytes == expected)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "it has %" PRIu64 " bytes, and a model of llm.c with its header's sizes has "
                    "%" PRIu64 ": it %s, or its header is wrong",
                    file_bytes, expected, file_bytes < expected ? "was cut short" : "was added to");
}

static sl_status check_header(const sli_safetensors_reader *reader,
                              const int32_t header[HEADER_NUMBERS], sli_llmc_sizes *sizes)
{
    SL_TRY(parse_header(header, sizes));
    return check_length(reader->file_bytes, sizes);
}

static sl_status read_header(sli_safetensors_reader *reader, sli_llmc_sizes *sizes)
{
    int32_t header[HEADER_NUMBERS];
    if (reader->file_bytes < sizeof header)
        return sl_error(SL_ERR_FORMAT,
                        "%s: a model of llm.c begins with %zu bytes, but the file has %" PRIu64,
                        reader->path, sizeof header, reader->file_bytes);
    SL_TRY(sli_file_read_at(reader->path, reader->descriptor, 0, header, sizeof header));
    SL_TRY(sl_error_context(check_header(reader, header, sizes), "%s: ", reader->path));
    reader->data_begin = sizeof header;
    return fill_header(&reader->header, sizes);
}

sl_status sli_llmc_open(const char *path, sli_safetensors_reader **out, char **config)
{
    sli_llmc_sizes sizes;
    *config = NULL;
    SL_TRY(sli_safetensors_open_file(path, out));
    sl_status status;
    SL_TRY_OR_FAIL(read_header(*out, &sizes));
    if (asprintf(config,
                 "{\"model_type\": \"gpt2\", \"vocab_size\": %" PRId64 ", \"n_positions\": %" PRId64
                 ", \"n_layer\": %" PRId64 ", \"n_head\": %" PRId64 ", \"n_embd\": %" PRId64
                 ", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}",
                 sizes.vocab, sizes.positions, sizes.layers, sizes.heads, sizes.channels) >= 0)
        return SL_OK;
    *config = NULL;
    status = sli_no_memory(path, "its sizes");
fail:
    sli_safetensors_close(out);
    return status;
}
