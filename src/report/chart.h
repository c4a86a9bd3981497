/* Line charts as inline SVG: curves over the steps of a run, with axes. */
#ifndef SLI_REPORT_CHART_H
#define SLI_REPORT_CHART_H

#include <stdbool.h>
#include <stdio.h>

typedef struct sli_point {
    double x, y; /* y may be NaN: the curve has a gap there */
} sli_point;

/* Curves of one colour belong to one run. */
typedef struct sli_curve {
    const char *label;       /* of the run; borrowed, untrusted */
    const char *kind;        /* "smoothed" or the like; "" for the values themselves */
    int colour;              /* class c0 ... */
    bool faint;              /* drawn behind another one, lighter */
    bool dots;               /* a circle at each point */
    const sli_point *points; /* [count], borrowed; x is finite and ascends */
    size_t count;
} sli_curve;

typedef struct sli_chart {
    const char *title, *y_name, *x_name;
    bool whole_x;   /* x has whole numbers alone */
    bool log_scale; /* values below DBL_MIN are left out */
    const sli_curve *curves;
    int curve_count;
} sli_chart;

/* Writes a figure with its caption; nothing where no curve has a finite value. Curves of many
 * points are thinned to the lowest and highest of each pixel's. Where the pointer is, or a tap was,
 * a line and the curves' values are shown, by style alone. Call it between sli_c_numbers_begin and
 * _end. */
void sli_chart_draw(FILE *file, const sli_chart *chart);

/* Writes an SVG file of its own, in the page's colours for light and dark screens: the title, the
 * curves' names, the chart. Call it as sli_chart_draw. */
void sli_chart_write(FILE *file, const sli_chart *chart);

#endif
