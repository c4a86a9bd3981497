#include "report/chart.h"

#include "report/markup.h"
#include "report/page_style.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { WIDTH = 420, HEIGHT = 240, LEFT = 60, RIGHT = 22, TOP = 10, BOTTOM = 26 };
enum { MOST_POINTS = 2000, BUCKETS = WIDTH - LEFT - RIGHT };

typedef struct range {
    double low, high;
} range;

/* What is drawn where. */
typedef struct frame {
    FILE *file;
    const sli_chart *chart;
    range x, y;
} frame;

/* A logarithm's curve has normal numbers alone: others would be hundreds of decades away. */
static bool is_drawn(const frame *plot, double y)
{
    return isfinite(y) && (y >= DBL_MIN || !plot->chart->log_scale);
}

static void include(range *bounds, double value)
{
    bounds->low = fmin(bounds->low, value);
    bounds->high = fmax(bounds->high, value);
}

/* False where there is nothing to draw. */
static bool find_ranges(frame *plot)
{
    plot->x = plot->y = (range){INFINITY, -INFINITY};
    for (int c = 0; c < plot->chart->curve_count; c++) {
        const sli_curve *curve = &plot->chart->curves[c];
        for (size_t i = 0; i < curve->count; i++) {
            if (!is_drawn(plot, curve->points[i].y))
                continue;
            include(&plot->x, curve->points[i].x);
            include(&plot->y, curve->points[i].y);
        }
    }
    if (plot->x.low > plot->x.high)
        return false;
    if (plot->x.low == plot->x.high)
        plot->x.high += fmax(1, 1e-6 * fabs(plot->x.high));
    double margin = 0.04 * (plot->y.high - plot->y.low);
    if (margin == 0)
        margin = plot->y.high != 0 ? 0.1 * fabs(plot->y.high) : 1;
    if (plot->chart->log_scale) {
        double factor = exp(0.04 * (log(plot->y.high) - log(plot->y.low)));
        factor = factor > 1 ? factor : 1.1;
        plot->y =
            (range){fmax(plot->y.low / factor, DBL_MIN), fmin(plot->y.high * factor, DBL_MAX)};
    } else {
        plot->y = (range){plot->y.low >= 0 ? fmax(0, plot->y.low - margin) : plot->y.low - margin,
                          plot->y.high + margin};
    }
    return isfinite(plot->y.high - plot->y.low) && plot->y.low < plot->y.high;
}

static double place_x(const frame *plot, double x)
{
    return LEFT + (x - plot->x.low) / (plot->x.high - plot->x.low) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const frame *plot, double y)
{
    double part = plot->chart->log_scale
                      ? (log(y) - log(plot->y.low)) / (log(plot->y.high) - log(plot->y.low))
                      : (y - plot->y.low) / (plot->y.high - plot->y.low);
    return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
}

/* ---- Axes --------------------------------------------------------------------------------- */

static void draw_y_tick(const frame *plot, double value)
{
    double y = place_y(plot, value);
    fprintf(plot->file,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
            LEFT, WIDTH - RIGHT, y, y, LEFT - 5, y + 4, value);
}

static void draw_x_tick(const frame *plot, double value)
{
    fprintf(plot->file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n",
            place_x(plot, value), HEIGHT - 8, value);
}

/* 1, 2 or 5 times a power of ten, which divides the range into at most `most` steps. */
static double nice_step(range bounds, int most)
{
    double least = (bounds.high - bounds.low) / most, power = pow(10, floor(log10(least)));
    double factor = least / power;
    return power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
}

static void draw_linear_ticks(const frame *plot, range bounds, int most, double least_step,
                              void (*draw)(const frame *plot, double value))
{
    double step = fmax(nice_step(bounds, most), least_step);
    double first = ceil(bounds.low / step);
    for (int i = 0; i <= most && (first + i) * step <= bounds.high; i++)
        draw(plot, (first + i) * step);
}

/* Powers of ten, and over few of them also 2 and 5 times these. */
static void draw_log_ticks(const frame *plot)
{
    static const double factors[] = {1, 2, 5};
    int first = (int)floor(log10(plot->y.low)), last = (int)floor(log10(plot->y.high));
    int every = 1 + (last - first) / 8;
    for (int power = first; power <= last; power++)
        for (int f = 0; f < (last - first <= 2 ? 3 : 1); f++) {
            double value = factors[f] * pow(10, power);
            if ((power - first) % every == 0 && value >= plot->y.low && value <= plot->y.high)
                draw_y_tick(plot, value);
        }
}

static void draw_axes(const frame *plot)
{
    const double least_factor = 5; /* over a smaller one, there may be a single tick */
    if (plot->chart->log_scale && plot->y.high / plot->y.low > least_factor)
        draw_log_ticks(plot);
    else
        draw_linear_ticks(plot, plot->y, 5, 0, draw_y_tick);
    draw_linear_ticks(plot, plot->x, 6, plot->chart->whole_x ? 1 : 0, draw_x_tick);
    fprintf(plot->file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 14,
            HEIGHT - 8, plot->chart->x_name);
}

/* ---- Curves ------------------------------------------------------------------------------- */

/* How many points a bucket has: one, or so many that there are at most BUCKETS of them. */
static size_t bucket_points(const sli_curve *curve)
{
    return curve->count > MOST_POINTS ? (curve->count + BUCKETS - 1) / BUCKETS : 1;
}

/* Finds the lowest and the highest point of the bucket that begins at point `first`, in the order
 * of x. Returns how many these are, 0 to 2. */
static int find_ends(const frame *plot, const sli_curve *curve, size_t first,
                     const sli_point *ends[2])
{
    const sli_point *low = NULL, *high = NULL;
    size_t end = first + bucket_points(curve);
    for (size_t i = first; i < end && i < curve->count; i++) {
        const sli_point *point = &curve->points[i];
        if (!is_drawn(plot, point->y))
            continue;
        low = !low || point->y < low->y ? point : low;
        high = !high || point->y > high->y ? point : high;
    }
    if (!low)
        return 0;
    ends[0] = low < high ? low : high;
    ends[1] = low < high ? high : low;
    return low == high ? 1 : 2;
}

static void draw_path(const frame *plot, const sli_curve *curve)
{
    const sli_point *ends[2];
    const char *verb = "M";
    for (size_t i = 0; i < curve->count; i += bucket_points(curve)) {
        int count = find_ends(plot, curve, i, ends);
        if (count == 0)
            verb = "M";
        for (int e = 0; e < count; e++, verb = "L")
            fprintf(plot->file, "%s%.1f %.1f", verb, place_x(plot, ends[e]->x),
                    place_y(plot, ends[e]->y));
    }
}

static void draw_dot(const frame *plot, const sli_curve *curve, const sli_point *point)
{
    fprintf(plot->file, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
            curve->colour, place_x(plot, point->x), place_y(plot, point->y));
}

static void draw_dots(const frame *plot, const sli_curve *curve)
{
    const sli_point *ends[2];
    for (size_t i = 0; i < curve->count; i += bucket_points(curve)) {
        int count = find_ends(plot, curve, i, ends);
        for (int e = 0; e < count; e++)
            draw_dot(plot, curve, ends[e]);
    }
}

static void draw_curve(const frame *plot, const sli_curve *curve)
{
    fprintf(plot->file, "<path class=\"c%d%s\" d=\"", curve->colour,
            curve->faint  ? " faint"
            : curve->dots ? " dotted"
                          : "");
    draw_path(plot, curve);
    fputs("\"><title>", plot->file);
    sli_markup_text(plot->file, curve->label);
    fputs("</title></path>\n", plot->file);
    if (curve->dots)
        draw_dots(plot, curve);
}

/* ---- Values ------------------------------------------------------------------------------- */

/* The chart is cut into columns, each around one point of the longest curve or, of many points,
 * some of them. A column is a wide line that cannot be seen; the pointer on it shows what belongs
 * to it. */
enum { MOST_COLUMNS = 120, MOST_LINES = 16, LINE = 12, NAME_CHARACTERS = 14 };

static int count_columns(const frame *plot)
{
    size_t most = 1;
    for (int c = 0; c < plot->chart->curve_count; c++)
        most = plot->chart->curves[c].count > most ? plot->chart->curves[c].count : most;
    return most < MOST_COLUMNS ? (int)most : MOST_COLUMNS;
}

static int column_of(const frame *plot, int count, double x)
{
    return (int)lround((x - plot->x.low) / (plot->x.high - plot->x.low) * (count - 1));
}

/* ranges[column]: of x and of each curve's values that are drawn; empty ones are upside down. */
typedef struct column {
    range x, *values; /* [curve_count] */
} column;

static void find_values(const frame *plot, column *columns, int count, range *values)
{
    int curves = plot->chart->curve_count;
    for (int i = 0; i < count; i++)
        columns[i] = (column){{INFINITY, -INFINITY}, values + (size_t)i * (size_t)curves};
    for (int i = 0; i < count * curves; i++)
        values[i] = (range){INFINITY, -INFINITY};
    for (int c = 0; c < curves; c++) {
        const sli_curve *curve = &plot->chart->curves[c];
        for (size_t i = 0; i < curve->count; i++) {
            const sli_point *point = &curve->points[i];
            if (!is_drawn(plot, point->y))
                continue;
            column *slot = &columns[column_of(plot, count, point->x)];
            include(&slot->x, point->x);
            include(&slot->values[c], point->y);
        }
    }
}

static void write_whole(FILE *file, double number)
{
    fprintf(file, "%.0f", number);
}

/* "5.2", or "5.2 to 5.9" */
static void write_range(FILE *file, range bounds, void (*write)(FILE *file, double number))
{
    write(file, bounds.low);
    if (bounds.high == bounds.low)
        return;
    fputs(" to ", file);
    write(file, bounds.high);
}

/* The beginning of a name. */
static void write_name(FILE *file, const char *name)
{
    char begin[4 * NAME_CHARACTERS + 1];
    size_t bytes = 0;
    for (int characters = 0; name[bytes] && bytes + 1 < sizeof begin; bytes++) {
        characters += ((unsigned char)name[bytes] & 0xC0) != 0x80;
        if (characters > NAME_CHARACTERS)
            break;
        begin[bytes] = name[bytes];
    }
    begin[bytes] = '\0';
    sli_markup_text(file, begin);
    fputs(name[bytes] ? "…" : "", file);
}

static void write_curve_value(const frame *plot, const sli_curve *curve, range bounds, double x)
{
    bool several =
        plot->chart->curves[0].colour != plot->chart->curves[plot->chart->curve_count - 1].colour;
    fprintf(plot->file, "<tspan x=\"%.1f\" dy=\"%d\">", x, LINE);
    if (several) {
        fprintf(plot->file, "<tspan class=\"c%d\">■</tspan> ", curve->colour);
        write_name(plot->file, curve->label);
        fputs(" ", plot->file);
    }
    fprintf(plot->file, "%s%s", curve->kind, *curve->kind ? " " : "");
    write_range(plot->file, bounds, sli_markup_number);
    fputs("</tspan>", plot->file);
}

/* The text stands on the other side of the chart. */
static void write_values(const frame *plot, const column *slot, bool right)
{
    double x = right ? LEFT + 6 : WIDTH - RIGHT - 6;
    int lines = 1;
    fprintf(plot->file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s ", x, TOP + LINE,
            right ? "start" : "end", plot->chart->x_name);
    write_range(plot->file, slot->x, plot->chart->whole_x ? write_whole : sli_markup_number);
    for (int c = 0; c < plot->chart->curve_count; c++)
        if (slot->values[c].low <= slot->values[c].high && ++lines <= MOST_LINES)
            write_curve_value(plot, &plot->chart->curves[c], slot->values[c], x);
    if (lines > MOST_LINES)
        fprintf(plot->file, "<tspan x=\"%.1f\" dy=\"%d\">…</tspan>", x, LINE);
    fputs("</text>", plot->file);
}

static void draw_columns(const frame *plot, const column *columns, int count)
{
    const double width = (double)(WIDTH - LEFT - RIGHT) / (count > 1 ? count - 1 : 1);
    for (int i = 0; i < count; i++) {
        const column *slot = &columns[i];
        if (slot->x.low > slot->x.high)
            continue;
        double centre = count > 1 ? LEFT + i * width : LEFT + width / 2;
        double mark = place_x(plot, (slot->x.low + slot->x.high) / 2);
        fprintf(plot->file,
                "<g class=\"at\"><line class=\"hit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" "
                "stroke-width=\"%.2f\"/><g class=\"seen\"><line class=\"mark\" x1=\"%.1f\" "
                "x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>",
                centre, centre, TOP, HEIGHT - BOTTOM, width, mark, mark, TOP, HEIGHT - BOTTOM);
        write_values(plot, slot, mark > (LEFT + WIDTH - RIGHT) / 2.0);
        fputs("</g></g>\n", plot->file);
    }
}

static void draw_values(const frame *plot)
{
    int count = count_columns(plot);
    assert(plot->chart->curve_count > 0);
    column *columns = calloc((size_t)count, sizeof *columns);
    range *values = calloc((size_t)count * (size_t)plot->chart->curve_count, sizeof *values);
    if (columns && values) {
        find_values(plot, columns, count, values);
        draw_columns(plot, columns, count);
    }
    free(columns);
    free(values);
}

static void draw_plot(const frame *plot)
{
    draw_axes(plot);
    for (int c = 0; c < plot->chart->curve_count; c++)
        draw_curve(plot, &plot->chart->curves[c]);
    draw_values(plot);
}

void sli_chart_draw(FILE *file, const sli_chart *chart)
{
    frame plot = {.file = file, .chart = chart};
    if (!find_ranges(&plot))
        return;
    fprintf(file,
            "<figure><figcaption>%s <small>%s</small></figcaption>\n"
            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
            chart->title, chart->y_name, WIDTH, HEIGHT, chart->title);
    draw_plot(&plot);
    fputs("</svg></figure>\n", file);
}

/* ---- A file of its own ---------------------------------------------------------------------- */

enum { TITLE = 24, KEY_LINE = 16 };

/* A line for each curve that has a name. Returns their height. */
static int draw_key(const frame *plot)
{
    int y = TITLE;
    for (int c = 0; c < plot->chart->curve_count; c++) {
        const sli_curve *curve = &plot->chart->curves[c];
        if (!*curve->label)
            continue;
        fprintf(plot->file,
                "<rect class=\"c%d\" x=\"%d\" y=\"%d\" width=\"10\" height=\"10\"/>"
                "<text x=\"%d\" y=\"%d\">",
                curve->colour, LEFT, y + 2, LEFT + 16, y + 11);
        sli_markup_text(plot->file, curve->label);
        fputs("</text>\n", plot->file);
        y += KEY_LINE;
    }
    return y - TITLE;
}

void sli_chart_write(FILE *file, const sli_chart *chart)
{
    frame plot = {.file = file, .chart = chart};
    int key = chart->curve_count * KEY_LINE;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"%s\">\n<style>%s</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" style=\"fill:var(--paper)\"/>\n"
            "<text x=\"%d\" y=\"16\">%s, %s</text>\n",
            WIDTH, HEIGHT + TITLE + key, chart->title, page_style, LEFT, chart->title,
            chart->y_name);
    int height = draw_key(&plot);
    fprintf(file, "<g transform=\"translate(0 %d)\">\n", TITLE + height);
    if (find_ranges(&plot))
        draw_plot(&plot);
    fputs("</g>\n</svg>\n", file);
}
