#include "parallel/schedule/timeline.h"

/* In the order of sl_action_kind. */
static const struct {
    char letter;
    const char *name, *colour;
} kinds[SLI_ACTION_KINDS] = {
    {'F', "forward", "#7fb3e6"},
    {'R', "recompute", "#b8c4d0"},
    {'B', "backward", "#8fce8f"},
    {'I', "backward for the input", "#8fd6c4"},
    {'W', "backward for the weights", "#f2c078"},
    {'S', "the head's forward", "#b9a3e3"},
    {'T', "the head's backward", "#e3a3c7"},
};

char sli_action_letter(sl_action_kind kind)
{
    return (unsigned)kind < SLI_ACTION_KINDS ? kinds[kind].letter : '\0';
}

bool sli_action_kind_of(char letter, sl_action_kind *out)
{
    for (int kind = 0; kind < SLI_ACTION_KINDS; kind++) {
        if (kinds[kind].letter != letter)
            continue;
        *out = (sl_action_kind)kind;
        return true;
    }
    return false;
}

const char *sli_action_micro_text(sl_action action, char *text)
{
    int length = snprintf(text, SLI_MICRO_TEXT_BYTES, "%d", sli_action_micro(action));
    if (action.slices > 1)
        snprintf(text + length, SLI_MICRO_TEXT_BYTES - (size_t)length, ".%d",
                 sli_action_slice(action));
    return text;
}

const char *sli_action_text(sl_action action, char *text)
{
    char letter = sli_action_letter(action.kind), micro[SLI_MICRO_TEXT_BYTES];
    snprintf(text, SLI_ACTION_TEXT_BYTES, "%d%c%s", action.stage, letter ? letter : '?',
             sli_action_micro_text(action, micro));
    return text;
}

const char *sli_action_name(sl_action_kind kind)
{
    return kinds[kind].name;
}

const char *sli_action_colour(sl_action_kind kind)
{
    return kinds[kind].colour;
}

/* ---- Drawing ------------------------------------------------------------------------------ */

/* How many stages of the same rank come before it? */
static int stage_on_rank(const sli_timeline *timeline, int stage)
{
    return stage / timeline->ranks;
}

static void draw_bar(FILE *to, const sli_timeline *timeline, const sli_timeline_frame *frame,
                     sl_timeline_entry entry)
{
    const double letter_width = 7, baseline = frame->bar * 2 / 3;
    sl_action action = entry.action;
    double scale = timeline->end > 0 ? frame->width / timeline->end : 0;
    double x = frame->left + entry.start * scale, width = (entry.end - entry.start) * scale;
    double y = frame->top + timeline->placement[action.stage] * frame->row;
    char micro[SLI_MICRO_TEXT_BYTES], text[SLI_ACTION_TEXT_BYTES];
    double opacity =
        1 - 0.5 * stage_on_rank(timeline, action.stage) * timeline->ranks / timeline->stages;
    fprintf(to,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\" "
            "fill-opacity=\"%.2f\" stroke=\"#555\" stroke-width=\"0.5\">"
            "<title>%sstage %d, %s of micro-batch %s: %.4g%s, from %.4g to %.4g%s</title></rect>\n",
            x, y, width, frame->bar, kinds[action.kind].colour, opacity, timeline->prefix,
            action.stage, kinds[action.kind].name, sli_action_micro_text(action, micro),
            (entry.end - entry.start) * timeline->factor, timeline->unit,
            entry.start * timeline->factor, entry.end * timeline->factor, timeline->unit);
    int length = snprintf(text, sizeof text, "%c%s", kinds[action.kind].letter, micro);
    if (width > letter_width * length)
        fprintf(to,
                "<text class=\"bar\" x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\" "
                "pointer-events=\"none\">%s</text>\n",
                x + width / 2, y + baseline, text);
}

void sli_timeline_draw(FILE *to, const sli_timeline *timeline, const sli_timeline_frame *frame)
{
    double width = timeline->end > 0 ? frame->width * timeline->span / timeline->end : 0;
    for (int rank = 0; rank < timeline->ranks; rank++) {
        double y = frame->top + rank * frame->row;
        fprintf(to,
                "<text x=\"8\" y=\"%.1f\">rank %d</text>\n"
                "<rect class=\"bubble\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                "fill=\"#888\" fill-opacity=\"0.15\"><title>%srank %d is idle</title></rect>\n",
                y + frame->bar * 2 / 3, rank, frame->left, y, width, frame->bar, timeline->prefix,
                rank);
    }
    for (int i = 0; i < timeline->count; i++)
        draw_bar(to, timeline, frame, timeline->entries[i]);
}
