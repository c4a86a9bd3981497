#include "train/plan/cases.h"

#include <stdbool.h>

/* clang-format off */
const sli_case sli_start_cases[SLI_START_CASES] = {
    /*  to resume          another attempt  saved by its job */
    {{SLI_RESUME_NOTHING,  SLI_NO,          SLI_ANY},           SLI_START_NEW},
    {{SLI_RESUME_NOTHING,  SLI_YES,         SLI_SAVES_NOTHING}, SLI_START_NEW},
    {{SLI_RESUME_NOTHING,  SLI_YES,         SLI_SAVED_NONE},    SLI_START_AGAIN},
    {{SLI_RESUME_NAMED,    SLI_NO,          SLI_ANY},           SLI_START_NAMED},
    {{SLI_RESUME_NAMED,    SLI_YES,         SLI_SAVES_NOTHING}, SLI_START_NAMED},
    {{SLI_RESUME_NAMED,    SLI_YES,         SLI_SAVED_NONE},    SLI_START_NAMED},
    {{SLI_RESUME_AUTO,     SLI_NO,          SLI_ANY},           SLI_START_NEWEST},
    {{SLI_RESUME_AUTO,     SLI_YES,         SLI_SAVES_NOTHING}, SLI_START_NEWEST},
    {{SLI_RESUME_AUTO,     SLI_YES,         SLI_SAVED_NONE},    SLI_START_NEWEST},
    {{SLI_ANY,             SLI_YES,         SLI_SAVED_SOME},    SLI_START_OWN},
};

const sli_case sli_layout_cases[SLI_LAYOUT_CASES] = {
    /*  processes          replicas             fewer than at first */
    {{SLI_PROCESS_OWN,     SLI_ANY,             SLI_ANY}, SLI_LAYOUT_ASKED},
    {{SLI_PROCESS_ALONE,   SLI_REPLICAS_OPEN,   SLI_ANY}, SLI_LAYOUT_ONE},
    {{SLI_PROCESS_ALONE,   SLI_REPLICAS_LISTED, SLI_ANY}, SLI_LAYOUT_ASKED},
    {{SLI_PROCESS_ALONE,   SLI_REPLICAS_GIVEN,  SLI_NO},  SLI_LAYOUT_ASKED},
    {{SLI_PROCESS_ALONE,   SLI_REPLICAS_GIVEN,  SLI_YES}, SLI_LAYOUT_SEARCHED},
    {{SLI_PROCESS_RANKS,   SLI_REPLICAS_OPEN,   SLI_ANY}, SLI_LAYOUT_PROCESSES},
    {{SLI_PROCESS_RANKS,   SLI_REPLICAS_LISTED, SLI_ANY}, SLI_LAYOUT_PROCESSES},
    {{SLI_PROCESS_RANKS,   SLI_REPLICAS_GIVEN,  SLI_NO},  SLI_LAYOUT_ASKED},
    {{SLI_PROCESS_RANKS,   SLI_REPLICAS_GIVEN,  SLI_YES}, SLI_LAYOUT_SEARCHED},
};
/* clang-format on */

int sli_case_find(const sli_case *rows, int count, const int facts[3])
{
    for (int i = 0; i < count; i++) {
        bool holds = true;
        for (int k = 0; k < 3; k++)
            holds &= rows[i].facts[k] == SLI_ANY || rows[i].facts[k] == facts[k];
        if (holds)
            return rows[i].outcome;
    }
    return SLI_ANY;
}
