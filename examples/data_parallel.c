/* Data parallelism with one call: a batch is shared out over devices.
 *
 *   data_parallel [DEVICES]        default: 2
 *
 * A random data set of 100 rows of 5 numbers, a linear model from 5 to 2, batches of 30 rows. Each
 * replica says what it sees of a batch; outside, batches look as if there were one device. The
 * model is a layer of our own, to show how one is made. */
#include "exit_code.h"

#include <sluice/sluice.h>

#include <stdio.h>
#include <stdlib.h>

enum { INPUT_SIZE = 5, OUTPUT_SIZE = 2, BATCH_SIZE = 30, DATA_SIZE = 100 };

/* ---- The model: a linear layer that tells what goes through it ---- */

static sl_status model_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    char input[SL_SHAPE_TEXT_BYTES], output[SL_SHAPE_TEXT_BYTES];
    SL_TRY(sl_module_forward(sl_module_child(module, 0), pass, in, out));
    printf("\tIn Model (%s): input size %s output size %s\n", sl_device_name(sl_pass_device(pass)),
           sl_shape_text(sl_tensor_shape(in), input), sl_shape_text(sl_tensor_shape(*out), output));
    return SL_OK;
}

static sl_status model_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    return sl_module_backward(sl_module_child(module, 0), pass, grad_out, grad_in);
}

static sl_status model_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    return sl_module_output_shape(sl_module_child(module, 0), in, out);
}

static sl_status create_model(void *arg, sl_module **out)
{
    (void)arg;
    static const sl_module_ops ops = {.type = "Model",
                                      .forward = model_forward,
                                      .backward = model_backward,
                                      .output_shape = model_output_shape};
    sl_module *fc;
    SL_TRY(sl_module_create(&ops, NULL, out));
    return sl_module_append(out, "fc", sl_linear_create(INPUT_SIZE, OUTPUT_SIZE, false, &fc), &fc);
}

/* ---- The data: rows first … first + rows - 1 ---- */

static sl_status load_batch(sl_device *device, int first, int rows, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(rows, INPUT_SIZE);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    for (int i = 0; i < rows * INPUT_SIZE; i++) {
        uint32_t mixed = (uint32_t)(first * INPUT_SIZE + i + 1) * 2654435761u;
        sl_tensor_f32(*out)[i] = (float)(mixed >> 8) / (1 << 23) - 1;
    }
    return SL_OK;
}

static sl_status run(sl_data_parallel *model)
{
    char input_text[SL_SHAPE_TEXT_BYTES], output_text[SL_SHAPE_TEXT_BYTES];
    for (int first = 0; first < DATA_SIZE; first += BATCH_SIZE) {
        int rows = DATA_SIZE - first < BATCH_SIZE ? DATA_SIZE - first : BATCH_SIZE;
        sl_tensor *input, *output = NULL;
        SL_TRY(load_batch(sl_data_parallel_device(model, 0), first, rows, &input));
        sl_status status = sl_data_parallel_forward(model, &(sl_pass_options){0}, input, &output);
        if (status == SL_OK)
            printf("Outside: input size %s output size %s\n",
                   sl_shape_text(sl_tensor_shape(input), input_text),
                   sl_shape_text(sl_tensor_shape(output), output_text));
        sl_tensor_destroy(&input);
        sl_tensor_destroy(&output);
        SL_TRY(status);
    }
    return SL_OK;
}

/* "cpu:0,cpu:1,…" */
static sl_status create_devices(int count, sl_device_list **out)
{
    char names[512] = "";
    size_t used = 0;
    for (int i = 0; i < count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%scpu:%d", i ? "," : "", i);
    return sl_device_list_create(names, out, NULL);
}

int main(int argc, char **argv)
{
    enum { MAX_DEVICES = 64 };
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 2;
    if (count < 1 || count > MAX_DEVICES) {
        fprintf(stderr, "usage: data_parallel [DEVICES], 1 to %d\n", MAX_DEVICES);
        return 2;
    }
    sl_device_list *list = NULL;
    sl_device *devices[MAX_DEVICES];
    sl_module *module = NULL;
    sl_data_parallel *model = NULL;
    sl_status status = create_devices((int)count, &list);
    for (int i = 0; status == SL_OK && i < count; i++)
        devices[i] = sl_device_list_get(list, i);
    if (status == SL_OK)
        status = create_model(NULL, &module);
    if (status == SL_OK) {
        sl_data_parallel_options options = {.module = module,
                                            .replicate = create_model,
                                            .devices = devices,
                                            .device_count = (int)count};
        status = sl_data_parallel_create(&options, &model);
    }
    if (status == SL_OK) {
        printf("Let's use %d devices!\n", sl_data_parallel_device_count(model));
        status = run(model);
    }
    sl_data_parallel_destroy(&model);
    sl_module_destroy(&module);
    sl_device_list_destroy(&list);
    return exit_code("data_parallel", status);
}
