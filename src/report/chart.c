#include "report/chart.h"

#include "report/markup.h"

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
    FILE *to;
    const sli_chart *chart;
    range x, y;
} frame;

/* A logarithm's curve has normal numbers alone: others would be hundreds of decades away. */
static bool is_drawn(const frame *on, double y)
{
    return isfinite(y) && (y >= DBL_MIN || !on->chart->log_scale);
}

static void include(range *to, double value)
{
    to->low = fmin(to->low, value);
    to->high = fmax(to->high, value);
}

/* False where there is nothing to draw. */
static bool find_ranges(frame *on)
{
    on->x = on->y = (range){INFINITY, -INFINITY};
    for (int c = 0; c < on->chart->curve_count; c++) {
        const sli_curve *curve = &on->chart->curves[c];
        for (size_t i = 0; i < curve->count; i++) {
            if (!is_drawn(on, curve->points[i].y))
                continue;
            include(&on->x, curve->points[i].x);
            include(&on->y, curve->points[i].y);
        }
    }
    if (on->x.low > on->x.high)
        return false;
    if (on->x.low == on->x.high)
        on->x.high += fmax(1, 1e-6 * fabs(on->x.high));
    double margin = 0.04 * (on->y.high - on->y.low);
    if (margin == 0)
        margin = on->y.high != 0 ? 0.1 * fabs(on->y.high) : 1;
    if (on->chart->log_scale) {
        double factor = exp(0.04 * (log(on->y.high) - log(on->y.low)));
        factor = factor > 1 ? factor : 1.1;
        on->y = (range){fmax(on->y.low / factor, DBL_MIN), fmin(on->y.high * factor, DBL_MAX)};
    } else {
        on->y = (range){on->y.low >= 0 ? fmax(0, on->y.low - margin) : on->y.low - margin,
                        on->y.high + margin};
    }
    return isfinite(on->y.high - on->y.low) && on->y.low < on->y.high;
}

static double place_x(const frame *on, double x)
{
    return LEFT + (x - on->x.low) / (on->x.high - on->x.low) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const frame *on, double y)
{
    double part = on->chart->log_scale
                      ? (log(y) - log(on->y.low)) / (log(on->y.high) - log(on->y.low))
                      : (y - on->y.low) / (on->y.high - on->y.low);
    return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
}

/* ---- Axes --------------------------------------------------------------------------------- */

static void draw_y_tick(const frame *on, double value)
{
    double y = place_y(on, value);
    fprintf(on->to,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
            LEFT, WIDTH - RIGHT, y, y, LEFT - 5, y + 4, value);
}

static void draw_x_tick(const frame *on, double value)
{
    fprintf(on->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n",
            place_x(on, value), HEIGHT - 8, value);
}

/* 1, 2 or 5 times a power of ten, which divides the range into at most `most` steps. */
static double nice_step(range of, int most)
{
    double least = (of.high - of.low) / most, power = pow(10, floor(log10(least)));
    double factor = least / power;
    return power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
}

static void draw_linear_ticks(const frame *on, range of, int most, double least_step,
                              void (*draw)(const frame *on, double value))
{
    double step = fmax(nice_step(of, most), least_step);
    double first = ceil(of.low / step);
    for (int i = 0; i <= most && (first + i) * step <= of.high; i++)
        draw(on, (first + i) * step);
}

/* Powers of ten, and over few of them also 2 and 5 times these. */
static void draw_log_ticks(const frame *on)
{
    static const double factors[] = {1, 2, 5};
    int first = (int)floor(log10(on->y.low)), last = (int)floor(log10(on->y.high));
    int every = 1 + (last - first) / 8;
    for (int power = first; power <= last; power++)
        for (int f = 0; f < (last - first <= 2 ? 3 : 1); f++) {
            double value = factors[f] * pow(10, power);
            if ((power - first) % every == 0 && value >= on->y.low && value <= on->y.high)
                draw_y_tick(on, value);
        }
}

static void draw_axes(const frame *on)
{
    const double least_factor = 5; /* over a smaller one, there may be a single tick */
    if (on->chart->log_scale && on->y.high / on->y.low > least_factor)
        draw_log_ticks(on);
    else
        draw_linear_ticks(on, on->y, 5, 0, draw_y_tick);
    draw_linear_ticks(on, on->x, 6, on->chart->whole_x ? 1 : 0, draw_x_tick);
    fprintf(on->to, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 14,
            HEIGHT - 8, on->chart->x_name);
}

/* ---- Curves ------------------------------------------------------------------------------- */

/* How many points a bucket has: one, or so many that there are at most BUCKETS of them. */
static size_t bucket_points(const sli_curve *curve)
{
    return curve->count > MOST_POINTS ? (curve->count + BUCKETS - 1) / BUCKETS : 1;
}

/* Finds the lowest and the highest point of the bucket that begins at point `from`, in the order of
 * x. Returns how many these are, 0 to 2. */
static int find_ends(const frame *on, const sli_curve *curve, size_t from, const sli_point *ends[2])
{
    const sli_point *low = NULL, *high = NULL;
    size_t end = from + bucket_points(curve);
    for (size_t i = from; i < end && i < curve->count; i++) {
        const sli_point *point = &curve->points[i];
        if (!is_drawn(on, point->y))
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

static void draw_path(const frame *on, const sli_curve *curve)
{
    const sli_point *ends[2];
    const char *verb = "M";
    for (size_t i = 0; i < curve->count; i += bucket_points(curve)) {
        int count = find_ends(on, curve, i, ends);
        if (count == 0)
            verb = "M";
        for (int e = 0; e < count; e++, verb = "L")
            fprintf(on->to, "%s%.1f %.1f", verb, place_x(on, ends[e]->x), place_y(on, ends[e]->y));
    }
}

static void draw_dot(const frame *on, const sli_curve *curve, const sli_point *point)
{
    fprintf(on->to, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n", curve->colour,
            place_x(on, point->x), place_y(on, point->y));
}

static void draw_dots(const frame *on, const sli_curve *curve)
{
    const sli_point *ends[2];
    for (size_t i = 0; i < curve->count; i += bucket_points(curve)) {
        int count = find_ends(on, curve, i, ends);
        for (int e = 0; e < count; e++)
            draw_dot(on, curve, ends[e]);
    }
}

static void draw_curve(const frame *on, const sli_curve *curve)
{
    fprintf(on->to, "<path class=\"c%d%s\" d=\"", curve->colour,
            curve->faint  ? " faint"
            : curve->dots ? " dotted"
                          : "");
    draw_path(on, curve);
    fputs("\"><title>", on->to);
    sli_markup_text(on->to, curve->label);
    fputs("</title></path>\n", on->to);
    if (curve->dots)
        draw_dots(on, curve);
}

/* ---- Values ------------------------------------------------------------------------------- */

/* The chart is cut into columns, each around one point of the longest curve or, of many points,
 * some of them. A column is a wide line that cannot be seen; the pointer on it shows what belongs
 * to it. */
enum { MOST_COLUMNS = 120, MOST_LINES = 16, LINE = 12, NAME_CHARACTERS = 14 };

static int count_columns(const frame *on)
{
    size_t most = 1;
    for (int c = 0; c < on->chart->curve_count; c++)
        most = on->chart->curves[c].count > most ? on->chart->curves[c].count : most;
    return most < MOST_COLUMNS ? (int)most : MOST_COLUMNS;
}

static int column_of(const frame *on, int count, double x)
{
    return (int)lround((x - on->x.low) / (on->x.high - on->x.low) * (count - 1));
}

/* ranges[column]: of x and of each curve's values that are drawn; empty ones are upside down. */
typedef struct column {
    range x, *values; /* [curve_count] */
} column;

static void find_values(const frame *on, column *columns, int count, range *values)
{
    int curves = on->chart->curve_count;
    for (int i = 0; i < count; i++)
        columns[i] = (column){{INFINITY, -INFINITY}, values + (size_t)i * (size_t)curves};
    for (int i = 0; i < count * curves; i++)
        values[i] = (range){INFINITY, -INFINITY};
    for (int c = 0; c < curves; c++) {
        const sli_curve *curve = &on->chart->curves[c];
        for (size_t i = 0; i < curve->count; i++) {
            const sli_point *point = &curve->points[i];
            if (!is_drawn(on, point->y))
                continue;
            column *to = &columns[column_of(on, count, point->x)];
            include(&to->x, point->x);
            include(&to->values[c], point->y);
        }
    }
}

static void write_whole(FILE *to, double number)
{
    fprintf(to, "%.0f", number);
}

/* "5.2", or "5.2 to 5.9" */
static void write_range(FILE *to, range of, void (*write)(FILE *to, double number))
{
    write(to, of.low);
    if (of.high == of.low)
        return;
    fputs(" to ", to);
    write(to, of.high);
}

/* The beginning of a name. */
static void write_name(FILE *to, const char *name)
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
    sli_markup_text(to, begin);
    fputs(name[bytes] ? "…" : "", to);
}

static void write_curve_value(const frame *on, const sli_curve *curve, range of, double x)
{
    bool several =
        on->chart->curves[0].colour != on->chart->curves[on->chart->curve_count - 1].colour;
    fprintf(on->to, "<tspan x=\"%.1f\" dy=\"%d\">", x, LINE);
    if (several) {
        fprintf(on->to, "<tspan class=\"c%d\">■</tspan> ", curve->colour);
        write_name(on->to, curve->label);
        fputs(" ", on->to);
    }
    fprintf(on->to, "%s%s", curve->kind, *curve->kind ? " " : "");
    write_range(on->to, of, sli_markup_number);
    fputs("</tspan>", on->to);
}

/* The text stands on the other side of the chart. */
static void write_values(const frame *on, const column *of, bool right)
{
    double x = right ? LEFT + 6 : WIDTH - RIGHT - 6;
    int lines = 1;
    fprintf(on->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s ", x, TOP + LINE,
            right ? "start" : "end", on->chart->x_name);
    write_range(on->to, of->x, on->chart->whole_x ? write_whole : sli_markup_number);
    for (int c = 0; c < on->chart->curve_count; c++)
        if (of->values[c].low <= of->values[c].high && ++lines <= MOST_LINES)
            write_curve_value(on, &on->chart->curves[c], of->values[c], x);
    if (lines > MOST_LINES)
        fprintf(on->to, "<tspan x=\"%.1f\" dy=\"%d\">…</tspan>", x, LINE);
    fputs("</text>", on->to);
}

static void draw_columns(const frame *on, const column *columns, int count)
{
    const double width = (double)(WIDTH - LEFT - RIGHT) / (count > 1 ? count - 1 : 1);
    for (int i = 0; i < count; i++) {
        const column *of = &columns[i];
        if (of->x.low > of->x.high)
            continue;
        double at = count > 1 ? LEFT + i * width : LEFT + width / 2;
        double mark = place_x(on, (of->x.low + of->x.high) / 2);
        fprintf(on->to,
                "<g class=\"at\"><line class=\"hit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" "
                "stroke-width=\"%.2f\"/><g class=\"seen\"><line class=\"mark\" x1=\"%.1f\" "
                "x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>",
                at, at, TOP, HEIGHT - BOTTOM, width, mark, mark, TOP, HEIGHT - BOTTOM);
        write_values(on, of, mark > (LEFT + WIDTH - RIGHT) / 2.0);
        fputs("</g></g>\n", on->to);
    }
}

static void draw_values(const frame *on)
{
    int count = count_columns(on);
    assert(on->chart->curve_count > 0);
    column *columns = calloc((size_t)count, sizeof *columns);
    range *values = calloc((size_t)count * (size_t)on->chart->curve_count, sizeof *values);
    if (columns && values) {
        find_values(on, columns, count, values);
        draw_columns(on, columns, count);
    }
    free(columns);
    free(values);
}

void sli_chart_draw(FILE *to, const sli_chart *chart)
{
    frame on = {.to = to, .chart = chart};
    if (!find_ranges(&on))
        return;
    fprintf(to,
            "<figure><figcaption>%s <small>%s</small></figcaption>\n"
            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
            chart->title, chart->y_name, WIDTH, HEIGHT, chart->title);
    draw_axes(&on);
    for (int c = 0; c < chart->curve_count; c++)
        draw_curve(&on, &chart->curves[c]);
    draw_values(&on);
    fputs("</svg></figure>\n", to);
}
