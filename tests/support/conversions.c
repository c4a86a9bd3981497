#include "conversions.h"

#include "check.h"
#include "nn/module.h"

static bool is_weight_size(const conversions *counted, int64_t count)
{
    for (int i = 0; i < counted->weights; i++)
        if (counted->sizes[i] == count)
            return true;
    return false;
}

static sl_status count_conversion(sl_device *device, const sli_convert *arguments)
{
    struct conversions_device *counting = (struct conversions_device *)device->ops;
    if (arguments->to_bf16 && is_weight_size(counting->counted, arguments->count))
        atomic_fetch_add(&counting->counted->made, 1);
    return counting->real->convert(device, arguments);
}

static void count_on_device(conversions *counted, struct conversions_device *counting,
                            sl_device *device)
{
    assert_ptr_not_equal(device->ops->convert, count_conversion); /* another stage's device */
    counting->ops = *device->ops;
    counting->ops.convert = count_conversion;
    counting->real = device->ops;
    counting->counted = counted;
    device->ops = &counting->ops;
}

void count_conversions(conversions *counted, const sl_pipe *pipe)
{
    counted->weights = 0;
    atomic_store(&counted->made, 0);
    assert_true(sl_pipe_stages(pipe) <= CONVERSIONS_MAX_STAGES);
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, i);
            if (!parameter->bf16)
                continue;
            assert_true(counted->weights < CONVERSIONS_MAX_WEIGHTS);
            counted->sizes[counted->weights++] = sl_tensor_count(parameter->bf16);
        }
        count_on_device(counted, &counted->devices[s], sl_pipe_device(pipe, s));
    }
}

int take_conversions(conversions *counted)
{
    return atomic_exchange(&counted->made, 0);
}
