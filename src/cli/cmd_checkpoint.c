/* sluice checkpoint: what is in checkpoints, whether they are whole, and others made from them. */
#include "cli/cli.h"
#include "sluice/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct settings {
    uint64_t shard_bytes;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "shard-size", .value = "BYTES", FIELD(BYTES, shard_bytes),
     .help = "convert, average: largest file of tensors, such as 500M (K, M and G are powers of "
             "1024); by default one file for the model and one for the optimizer"},
    {0},
};
/* clang-format on */

/* ---- Showing ------------------------------------------------------------------------------ */

static void print_files(const sl_checkpoint_reader *reader)
{
    for (size_t i = 0; i < sl_checkpoint_file_count(reader); i++) {
        const sl_checkpoint_file_info *file = sl_checkpoint_file_get(reader, i);
        printf("  ");
        cli_print_text(file->name, 34);
        printf(" %12s  %s\n", cli_bytes_text((int64_t)file->bytes).text,
               file->checksum ? file->checksum : "");
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
    const char *state = sl_checkpoint_state(reader);
    cli_print_text(path, 0);
    if (state) {
        printf(", by sluice ");
        cli_print_text(sl_checkpoint_version(reader), 0);
    }
    printf("\n");
    print_files(reader);
    print_parts(reader);
    if (state) {
        printf("  state ");
        cli_print_text(state, 0);
        printf("\n");
    }
    sl_checkpoint_close(&reader);
    return SL_OK;
}

/* ---- Verifying ---------------------------------------------------------------------------- */

static sl_status verify_checkpoint(const char *path)
{
    sl_checkpoint_reader *reader;
    SL_TRY(cli_name_checkpoints(sl_checkpoint_open(path, &reader), path));
    sl_status status = sl_checkpoint_verify(reader);
    bool has_checksums = sl_checkpoint_state(reader);
    sl_checkpoint_close(&reader);
    if (status != SL_OK)
        return status;
    cli_print_text(path, 0);
    printf(has_checksums ? " is whole\n" : " can be read; a model has no checksums to compare\n");
    return SL_OK;
}

/* Verifies all, reports each failure, then counts them. */
static sl_status verify_all(char **paths, int count)
{
    int failed = 0;
    for (int i = 0; i < count; i++) {
        if (verify_checkpoint(paths[i]) == SL_OK)
            continue;
        cli_complain("%s", sl_error_text());
        failed++;
    }
    return failed ? sl_error(SL_ERR_FORMAT, "%d of %d checkpoints could not be verified", failed,
                             count)
                  : SL_OK;
}

/* ---- The command -------------------------------------------------------------------------- */

typedef enum action { SHOW, VERIFY, CONVERT, AVERAGE, ACTIONS } action;

/* Ends the program where the line asks for nothing that can be done. */
static action read_action(const cli_line *line, const settings *parsed)
{
    static const char expected[] = "checkpoint: expected show, verify, convert or average";
    static const char *const names[] = {"show", "verify", "convert", "average"};
    if (line->word_count == 0)
        cli_refuse("%s", expected);
    cli_near near = {.word = line->words[0]};
    action found = SHOW;
    while (found < ACTIONS && strcmp(line->words[0], names[found]) != 0)
        cli_near_add(&near, names[found++]);
    int paths = line->word_count - 1;
    if (found == ACTIONS)
        cli_refuse_near(&near, "", "%s, got \"%s\"", expected, line->words[0]);
    if (found <= VERIFY && paths == 0)
        cli_refuse("checkpoint: expected the directory of a checkpoint");
    if (found == CONVERT && paths != 2)
        cli_refuse("checkpoint convert: expected two directories, FROM and TO");
    if (found == AVERAGE && paths < 2)
        cli_refuse("checkpoint average: expected directories, FROM... and TO");
    if (parsed->shard_bytes > 0 && found <= VERIFY)
        cli_refuse("checkpoint: --shard-size belongs to convert and average");
    return found;
}

static sl_status run_checkpoint(cli_line *line, void *settings_read)
{
    const settings *parsed = settings_read;
    action asked = read_action(line, parsed);
    char **paths = line->words + 1;
    int count = line->word_count - 1;
    if (asked == VERIFY)
        return verify_all(paths, count);
    for (int i = 0; asked == SHOW && i < count; i++)
        SL_TRY(show_checkpoint(paths[i]));
    sl_status status = SL_OK;
    if (asked == CONVERT)
        status = sl_checkpoint_convert(paths[0], paths[1], parsed->shard_bytes);
    if (asked == AVERAGE)
        status = sl_checkpoint_average((const char *const *)paths, (size_t)count - 1,
                                       paths[count - 1], parsed->shard_bytes);
    for (int i = 0; i + 1 < count; i++)
        status = cli_name_checkpoints(status, paths[i]);
    return status;
}

const cli_command cmd_checkpoint = {
    .name = "checkpoint",
    .summary = "show, verify, convert and average checkpoints and models",
    .arguments = "show DIR...\nverify DIR...\nconvert FROM TO\naverage FROM... TO",
    .doc = "show prints what checkpoints contain. verify reads them and compares checksums; its "
           "status is 1 where one is damaged. convert writes a checkpoint again with files of "
           "another size. average writes the mean of several models, without an optimizer.",
    .examples = "sluice checkpoint show RUN/best\n"
                "sluice checkpoint verify RUN/step-*\n"
                "sluice checkpoint average RUN/step-00000400 RUN/step-00000600 mean\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_checkpoint,
};
