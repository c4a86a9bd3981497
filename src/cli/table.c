#include "cli/cli.h"

sl_status cli_table_read(const cli_line *line, sl_train_options *options, sl_schedule **table)
{
    const char *schedule = sl_train_options_schedule(options);
    *table = NULL;
    if (sl_schedule_has_name(schedule))
        return SL_OK;
    bool chunks_given = cli_line_value(line, "chunks"), ranks_given = cli_line_value(line, "pp");
    sl_schedule_options wanted = {.ranks = ranks_given ? options->stages : 0,
                                  .virtual_stages = options->virtual_stages,
                                  .micros = chunks_given ? options->chunks : 0};
    SL_TRY(sl_schedule_open(schedule, &wanted, table));
    options->table = *table;
    options->stages = sl_schedule_ranks(*table);
    options->chunks = sl_schedule_micros(*table);
    return SL_OK;
}
