/* The page of a run that goes on: the report's pictures below the figures of the last step. A
 * script exchanges them for newer ones. */
#include "report/page.h"

#include "core/file.h"
#include "report/markup.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- The page without its content ----------------------------------------------------------- */

/* Exchanges the parts that have changed, but not a picture while a box of it shows its text beside
 * the pointer, or its curves' values are shown. A page that is not seen is sent nothing. */
/* clang-format off */
static const char script[] =
    "'use strict';\n"
    "const main = document.querySelector('main'), tip = document.getElementById('tip');\n"
    "const link = document.getElementById('link');\n"
    "let source, shown, newest = '';\n"
    "function exchange(old, next) {\n"
    "  const at = [...old.querySelectorAll('.wide')].map(box => box.scrollLeft);\n"
    "  if (old.open) next.open = true;\n"
    "  old.replaceWith(next);\n"
    "  next.querySelectorAll('.wide').forEach((box, i) => { box.scrollLeft = at[i] || 0; });\n"
    "}\n"
    "function update(into, from) {\n"
    "  const parts = [...from.children];\n"
    "  parts.forEach((next, i) => {\n"
    "    const old = into.children[i];\n"
    "    if (!old) into.append(next);\n"
    "    else if (old.className === 'charts' && next.className === 'charts') update(old, next);\n"
    "    else if (!old.contains(shown) && !old.isEqualNode(next)) exchange(old, next);\n"
    "  });\n"
    "  while (into.children.length > parts.length) into.lastElementChild.remove();\n"
    "}\n"
    "function show() {\n"
    "  const page = document.createElement('template');\n"
    "  page.innerHTML = newest;\n"
    "  update(main, page.content);\n"
    "}\n"
    "function leave() {\n"
    "  if (!shown) return;\n"
    "  if (shown.classList.contains('on')) {\n"
    "    shown.classList.remove('on');\n"
    "    shown = undefined;\n"
    "    show();\n"
    "    return;\n"
    "  }\n"
    "  const title = document.createElementNS('http://www.w3.org/2000/svg', 'title');\n"
    "  title.textContent = tip.textContent;\n"
    "  shown.append(title);\n"
    "  shown = undefined;\n"
    "  tip.hidden = true;\n"
    "  show();\n"
    "}\n"
    "main.addEventListener('pointerover', event => {\n"
    "  const values = event.target.closest('.at');\n"
    "  if (values) {\n"
    "    if (values === shown) return;\n"
    "    leave();\n"
    "    if (!values.isConnected) return;\n"
    "    shown = values;\n"
    "    values.classList.add('on');\n"
    "    return;\n"
    "  }\n"
    "  const title = event.target.querySelector(':scope > title');\n"
    "  if (!title) return;\n"
    "  leave();\n"
    "  if (!title.isConnected) return;\n"
    "  shown = event.target;\n"
    "  tip.textContent = title.textContent;\n"
    "  title.remove();\n"
    "  tip.hidden = false;\n"
    "  const x = event.clientX + 12, y = event.clientY + 16;\n"
    "  tip.style.left = Math.max(8, Math.min(x, innerWidth - tip.offsetWidth - 8)) + 'px';\n"
    "  tip.style.top = (y + tip.offsetHeight < innerHeight ? y : y - tip.offsetHeight - 28) + 'px';\n"
    "});\n"
    "main.addEventListener('pointerout', event => {\n"
    "  if (event.pointerType === 'mouse') leave();\n"
    "});\n"
    "document.addEventListener('pointerdown', event => { if (!shown?.contains(event.target)) leave(); });\n"
    "function open() {\n"
    "  source = new EventSource('events' + location.search);\n"
    "  source.onopen = () => { link.hidden = true; };\n"
    "  source.onerror = () => { link.hidden = false; };\n"
    "  source.onmessage = event => { newest = event.data; show(); };\n"
    "}\n"
    "document.addEventListener('visibilitychange', () => {\n"
    "  source.close();\n"
    "  if (!document.hidden) open();\n"
    "});\n"
    "open();\n";
/* clang-format on */

void sli_page_write_live(FILE *file, const char *name, const char *nonce)
{
    char title[256];
    snprintf(title, sizeof title, "%s – sluice", sli_path_name(name));
    sli_page_write_head(file, title, NULL);
    fputs("<main><p>This page needs JavaScript.</p></main>\n"
          "<p id=\"link\" class=\"wrong\" hidden=\"hidden\">There is no connection to sluice: the "
          "run, or sluice watch, has ended, or cannot be reached. The page shows the last state "
          "that was received.</p>\n"
          "<div id=\"tip\" hidden=\"hidden\"></div>\n",
          file);
    fprintf(file,
            "<footer>sluice %s</footer>\n<script nonce=\"%s\">\n%s</script>\n</body></html>\n",
            sl_version(), nonce, script);
}

/* ---- The figures ---------------------------------------------------------------------------- */

static void begin_figure(FILE *file, const char *name)
{
    fprintf(file, "<div><span>%s</span><b>", name);
}

static void end_figure(FILE *file)
{
    fputs("</b></div>\n", file);
}

/* Nothing where there is no value. */
static void write_figure(FILE *file, const char *name, double value)
{
    if (isnan(value))
        return;
    begin_figure(file, name);
    sli_markup_number(file, value);
    end_figure(file);
}

/* "1:02:03" or "2:03" */
static void write_duration(FILE *file, const char *name, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e9))
        return;
    int64_t whole = llround(seconds);
    int minutes = (int)(whole % 3600 / 60), rest = (int)(whole % 60);
    begin_figure(file, name);
    if (whole >= 3600)
        fprintf(file, "%" PRId64 ":%02d:%02d", whole / 3600, minutes, rest);
    else
        fprintf(file, "%d:%02d", minutes, rest);
    end_figure(file);
}

/* By the mean of the last steps. */
static double seconds_left(const sli_run_history *run, double steps_left)
{
    enum { MOST_STEPS = 50 };
    size_t count = run->step_count < MOST_STEPS ? run->step_count : MOST_STEPS;
    double sum = 0;
    for (size_t i = run->step_count - count; i < run->step_count; i++)
        sum += 1e-3 * run->steps[i].values[SLI_STEP_MS];
    return count > 0 ? sum / (double)count * steps_left : NAN;
}

/* How many steps the run is to have; 0: its log does not say. */
static double all_steps(const sli_run_history *run)
{
    double steps = json_number_value(json_object_get(run->run, "batches_per_epoch")) *
                   json_number_value(json_object_get(run->run, "epochs"));
    return steps >= 1 && steps < 1e15 ? steps : 0;
}

static void write_progress(FILE *file, const sli_run_history *run, bool grows)
{
    const sli_history_step *last = run->step_count > 0 ? &run->steps[run->step_count - 1] : NULL;
    double all = all_steps(run), done = last ? (double)last->step : 0;
    fputs("<p>", file);
    if (last)
        fprintf(file, "Epoch %" PRId64 ", step %.0f", last->epoch, done);
    if (last && all > 0)
        fprintf(file, " of %.0f", all);
    fprintf(file, "%s%s.</p>\n", last ? ". " : "",
            run->ended ? "The run has ended"
            : grows    ? "The run goes on"
                       : "The log has no end: the run goes on, was stopped, or failed");
    if (all > 0)
        fprintf(file, "<progress max=\"%.0f\" value=\"%.0f\"></progress>\n", all, fmin(done, all));
}

static void write_figures(FILE *file, const sli_run_history *run)
{
    const sli_history_step *last = run->step_count > 0 ? &run->steps[run->step_count - 1] : NULL;
    const double *values = last ? last->values : NULL;
    fputs("<div class=\"state\">\n", file);
    if (values) {
        write_figure(file, "loss", values[SLI_STEP_LOSS]);
        write_figure(file, "perplexity", exp(values[SLI_STEP_LOSS]));
        write_figure(file, "best validation", sli_history_best_loss(run));
        write_figure(file, "gradient norm", values[SLI_STEP_GRAD_NORM]);
        write_figure(file, "learning rate", values[SLI_STEP_LR]);
        write_figure(file, "tokens/s", values[SLI_STEP_TOKENS_PER_S]);
        write_figure(file, "GFLOP/s", 1e-9 * values[SLI_STEP_FLOPS_PER_S]);
        write_figure(file, "mfu, %", 100 * values[SLI_STEP_MFU]);
    }
    if (run->ended)
        write_duration(file, "time in all", run->seconds);
    else if (last && all_steps(run) > 0)
        write_duration(file, "left to train",
                       seconds_left(run, fmax(0, all_steps(run) - (double)last->step)));
    fputs("</div>\n", file);
}

void sli_page_write_live_content(const sli_page *page, bool grows, const char *error)
{
    const sli_run_history *run = page->runs[0];
    fputs("<h1>", page->file);
    sli_markup_text(page->file, run->name);
    fputs("</h1>\n", page->file);
    if (error) {
        fputs("<p class=\"wrong\">A line of the log cannot be read: ", page->file);
        sli_markup_text(page->file, error);
        fputs("</p>\n", page->file);
    }
    if (!run->run) {
        fputs("<p>The run has not begun.</p>\n", page->file);
        return;
    }
    write_progress(page->file, run, grows);
    write_figures(page->file, run);
    sli_page_draw_pictures(page);
    sli_page_write_results(page);
    sli_page_write_options(page);
}
