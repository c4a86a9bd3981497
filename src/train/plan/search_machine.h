/* The search for the best plans, on any machine. */
#ifndef SLI_TRAIN_PLAN_SEARCH_MACHINE_H
#define SLI_TRAIN_PLAN_SEARCH_MACHINE_H

#include "sluice/app/plan.h"
#include "train/plan/machine.h"

/* As sl_plan_search, for `run`, the options with what the data say. */
sl_status sli_plan_search_machine(const sl_plan_search_options *options,
                                  const sl_train_options *run, const sli_machine *machine,
                                  sl_found_plan *plans, int *count);

#endif
