/* Timelines: what pipeline ranks did when, as a row of bars for each rank in an SVG. */
#ifndef SLI_PARALLEL_SCHEDULE_TIMELINE_H
#define SLI_PARALLEL_SCHEDULE_TIMELINE_H

#include "sluice/schedule.h"

#include <stdio.h>

enum {
    SLI_ACTION_KINDS = SL_ACTION_HEAD_BACKWARD + 1,
    SLI_ACTION_TEXT_BYTES = 40,
    SLI_MICRO_TEXT_BYTES = 24
};

/* The slice of the action's micro-batch, and that one. */
static inline int sli_action_slice(sl_action action)
{
    return action.slices > 1 ? action.slices - 1 - action.micro % action.slices : 0;
}

static inline int sli_action_micro(sl_action action)
{
    return action.slices > 1 ? action.micro / action.slices : action.micro;
}

/* The number of slice `slice` of micro-batch `micro`. */
static inline int sli_slice_number(int micro, int slice, int slices)
{
    return micro * slices + slices - 1 - slice;
}

/* F, R, B, I, W, S or T; 0 for a value that is no kind. */
char sli_action_letter(sl_action_kind kind);

/* The kind of that letter, into *out; false where there is none. */
bool sli_action_kind_of(char letter, sl_action_kind *out);

/* "2F0", or with slices "2F0.1", to `text`, which holds SLI_ACTION_TEXT_BYTES, and returns it. */
const char *sli_action_text(sl_action action, char *text);

/* "forward", "recompute", "backward", "backward for the input", "backward for the weights",
 * "the head's forward", "the head's backward". */
const char *sli_action_name(sl_action_kind kind);

/* "0", or with slices "0.1", to `text`, which holds SLI_MICRO_TEXT_BYTES, and returns it. */
const char *sli_action_micro_text(sl_action action, char *text);

/* The fill of its bars, "#7fb3e6". */
const char *sli_action_colour(sl_action_kind kind);

typedef struct sli_timeline {
    const sl_timeline_entry *entries; /* [count], in any order */
    int count;
    const int *placement; /* [stages] the rank of each stage */
    int ranks, stages;
    double end;         /* the time at the right end of the rows */
    double span;        /* until then a rank without an action is idle */
    double factor;      /* of times in the bars' titles, */
    const char *unit;   /* whose unit is then this, " ms" */
    const char *prefix; /* before each title, "measured: " */
} sli_timeline;

/* Where it stands in the picture, in the picture's unit. */
typedef struct sli_timeline_frame {
    double left, width; /* of the rows; the ranks' names stand before them */
    double top, row;    /* of the first row; from one row to the next */
    double bar;         /* the height of a bar */
} sli_timeline_frame;

/* Draws each rank's row: its name, its whole time as a bubble (class "bubble"), and over that a bar
 * for each action, whose title says what it is and when it ran. Wide bars have a label (class
 * "bar"). Those of a rank's later stages are lighter. Call it between sli_c_numbers_begin and _end.
 */
void sli_timeline_draw(FILE *to, const sli_timeline *timeline, const sli_timeline_frame *frame);

#endif
