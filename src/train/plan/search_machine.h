/* The search for the best plans, on any machine. */
#ifndef SLI_TRAIN_PLAN_SEARCH_MACHINE_H
#define SLI_TRAIN_PLAN_SEARCH_MACHINE_H

#include "sluice/app/plan.h"
#include "train/plan/machine.h"

/* Whether an option is given and not searched: what a run leaves open (0, or no schedule) is. */
bool sli_plan_keeps(const sl_plan_search_options *options, const sl_train_options *run,
                    sl_plan_kept option);

/* The rows of a step: of the tokens that are asked for, or of the run. */
sl_status sli_plan_count_rows(const sl_plan_search_options *options, const sl_train_options *run,
                              int64_t *rows);

/* Sets the schedules and recompute modes of a search, and whether it splits the vocabulary: what is
 * given, or all. */
void sli_plan_list_choices(const sl_plan_search_options *options, const sl_train_options *run,
                           sli_search_space *space);

/* As sl_plan_search, for `run`, the options with what the data say. */
sl_status sli_plan_search_machine(const sl_plan_search_options *options,
                                  const sl_train_options *run, const sli_machine *machine,
                                  sl_found_plan *plans, int *count);

/* The same, but that nothing fits, or has these options, is no error: *count is 0. */
sl_status sli_plan_search_if_any(const sl_plan_search_options *options, const sl_train_options *run,
                                 const sli_machine *machine, sl_found_plan *plans, int *count);

/* What would help the first plan of such a search. */
sl_status sli_plan_help_machine(const sl_plan_search_options *options, const sl_train_options *run,
                                const sli_machine *machine, const sl_found_plan *first,
                                sl_plan_helps *out);

#endif
