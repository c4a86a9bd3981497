/* sluice checkpoint: what is in checkpoints, whether they are whole, and others made from them. */
#include "cli/cli.h"
#include "sluice/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef enum action { SHOW, VERIFY, CONVERT, AVERAGE } action;

typedef struct settings {
    action action;
    char **paths; /* [count], the line's */
    int count;
    uint64_t shard_bytes;
} settings;

/* ---- Arguments --------------------------------------------------------------------------- */

/* clang-format off */
static const sl_option options[] = {
    {.name = "shard-size", .value = "BYTES", .type = SL_OPTION_BYTES,
     .offset = offsetof(settings, shard_bytes),
     .help = "convert, average: largest file of tensors, such as 500M (K, M and G are powers of "
             "1024); by default one file for the model and one for the optimizer"},
    {0},
};
/* clang-format on */

static void read_settings(cli_line *line, settings *to)
{
    static const char expected[] = "checkpoint: expected show, verify, convert or average";
    static const char *const names[] = {"show", "verify", "convert", "average"};
    cli_settings_read(line, to);
    if (line->word_count == 0)
        cli_refuse("%s", expected);
    cli_near near = {.word = line->words[0]};
    to->action = SHOW;
    while (to->action <= AVERAGE && strcmp(line->words[0], names[to->action]) != 0)
        cli_near_add(&near, names[to->action++]);
    if (to->action > AVERAGE)
        cli_refuse_near(&near, "", "%s, got \"%s\"", expected, line->words[0]);
    to->paths = line->words + 1;
    to->count = line->word_count - 1;
}

static void check_settings(const settings *parsed)
{
    bool writes = parsed->action == CONVERT || parsed->action == AVERAGE;
    if (!writes && parsed->count == 0)
        cli_refuse("checkpoint: expected the directory of a checkpoint");
    if (parsed->action == CONVERT && parsed->count != 2)
        cli_refuse("checkpoint convert: expected two directories, FROM and TO");
    if (parsed->action == AVERAGE && parsed->count < 2)
        cli_refuse("checkpoint average: expected directories, FROM... and TO");
    if (parsed->shard_bytes > 0 && !writes)
        cli_refuse("checkpoint: --shard-size belongs to convert and average");
}

/* ---- Showing ------------------------------------------------------------------------------ */

static void print_files(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < sl_checkpoint_file_count(reader); i++) {
        const sl_checkpoint_file_info *file = sl_checkpoint_file_get(reader, i);
        printf("  ");
        cli_print_text(file->name, 34);
        printf(" %12s  %s\n", cli_bytes_text((int64_t)file->bytes).text, file->checksum);
    }
}

static void print_part(const sl_checkpoint_reader *reader, const char *part)
{
    size_t count = sl_checkpoint_tensor_count(reader, part);
    int64_t elements = 0;
    for (size_t i = 0; i < count; i++) {
        const sl_safetensors_info *info = sl_checkpoint_tensor_get(reader, part, i);
        uint64_t product = 1; /* wraps where a size of 0 comes last */
        for (int d = 0; d < info->dims; d++)
            product *= (uint64_t)info->size[d];
        elements += (int64_t)product;
    }
    printf("  part ");
    cli_print_text(part, 10);
    printf(" %6zu tensors of %s elements\n", count, cli_count_text(elements).text);
}

static void print_parts(const sl_checkpoint_reader *reader)
{
    const char *shown[SL_CHECKPOINT_MOST_PARTS];
    int count = 0;
    for (size_t i = 0; i < sl_checkpoint_file_count(reader); i++) {
        const char *part = sl_checkpoint_file_get(reader, i)->part;
        int p = 0;
        while (part && p < count && strcmp(shown[p], part) != 0)
            p++;
        if (!part || p < count)
            continue;
        shown[count++] = part;
        print_part(reader, part);
    }
}

static sl_status show_checkpoint(const char *path)
{
    sl_checkpoint_reader *reader;
    SL_TRY(cli_name_checkpoints(sl_checkpoint_open(path, &reader), path));
    printf("%s, by sluice ", path);
    cli_print_text(sl_checkpoint_version(reader), 0);
    printf("\n");
    print_files(reader);
    print_parts(reader);
    printf("  state ");
    cli_print_text(sl_checkpoint_state(reader), 0);
    printf("\n");
    sl_checkpoint_close(&reader);
    return SL_OK;
}

/* ---- Verifying ---------------------------------------------------------------------------- */

static sl_status verify_checkpoint(const char *path)
{
    sl_checkpoint_reader *reader;
    SL_TRY(cli_name_checkpoints(sl_checkpoint_open(path, &reader), path));
    sl_status status = sl_checkpoint_verify(reader);
    sl_checkpoint_close(&reader);
    if (status == SL_OK)
        printf("%s is whole\n", path);
    return status;
}

/* Verifies all, reports each failure, then counts them. */
static sl_status verify_all(const settings *from)
{
    int failed = 0;
    for (int i = 0; i < from->count; i++) {
        if (verify_checkpoint(from->paths[i]) == SL_OK)
            continue;
        cli_complain("%s", sl_error_text());
        failed++;
    }
    return failed ? sl_error(SL_ERR_FORMAT, "%d of %d checkpoints could not be verified", failed,
                             from->count)
                  : SL_OK;
}

/* ---- The command -------------------------------------------------------------------------- */

static sl_status perform_action(const settings *from)
{
    sl_status status = SL_OK;
    switch (from->action) {
    case SHOW:
        for (int i = 0; i < from->count; i++)
            SL_TRY(show_checkpoint(from->paths[i]));
        return SL_OK;
    case VERIFY:
        return verify_all(from);
    case CONVERT:
        return cli_name_checkpoints(sl_checkpoint_convert(from->paths[0], from->paths[1],
                                                          from->shard_bytes),
                                    from->paths[0]);
    case AVERAGE:
        status = sl_checkpoint_average((const char *const *)from->paths, (size_t)from->count - 1,
                                       from->paths[from->count - 1], from->shard_bytes);
        for (int i = 0; i + 1 < from->count; i++)
            status = cli_name_checkpoints(status, from->paths[i]);
        return status;
    }
    return SL_OK;
}

static int run_checkpoint(cli_line *line)
{
    settings parsed;
    read_settings(line, &parsed);
    check_settings(&parsed);
    return cli_finish(perform_action(&parsed));
}

const cli_command cmd_checkpoint = {
    .name = "checkpoint",
    .summary = "show, verify, convert and average checkpoints",
    .arguments = "show DIR...\nverify DIR...\nconvert FROM TO\naverage FROM... TO",
    .doc = "show prints what checkpoints contain. verify reads them and compares checksums; its "
           "status is 1 where one is damaged. convert writes a checkpoint again with files of "
           "another size. average writes the mean of several models, without an optimizer.",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_checkpoint,
};
