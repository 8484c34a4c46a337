"""Errors that `test_fused.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("packed integers are taken for a gate's dtype", "gate_of", "if dtype not in DTYPES:", "if False:", "test_fused.py::test_a_product_of_packed_integers_is_left_alone"),
    Mutation("every norm with an epsilon is a plain one", "norm_of", "if _same(output, norm(x, probe, epsilon)):", "if output is not None:", "test_fused.py::test_a_norm_that_computes_something_else_is_left_alone"),
    Mutation("norms are tried with weights of one", "norm_of", "probe = 1 + numbers(len(weight), dtype=weight.dtype, seed=1) / 4", "probe = torch.ones_like(x[0])", "test_fused.py::test_each_norm_has_the_form_that_rounds_in_the_same_way"),
    Mutation("gate and up are tried with one product", "gate_of", "dtype=dtype, seed=seed)", "dtype=dtype, seed=0)", "test_fused.py::test_a_product_that_computes_something_else_is_left_alone"),
    Mutation("a rotation is recognised by its first result", "tables_of", "if _same(rotated[0], turned(q, cos, sin)) and _same(rotated[1], turned(k, cos, sin)):", "if True:", "test_fused.py::test_rotations_of_neighbours_are_left_alone"),
    Mutation("a module is tried with other weights in place", "module_forms:_output_with", "stand_in = copy.copy(module)", "stand_in = module", "test_fused.py::test_fusing_changes_neither_the_model_nor_torchs_random_state"),
    Mutation("trying a module draws random numbers", "gate_of", 'bias=False, device="meta")', 'bias=False, device="cpu")', "test_fused.py::test_fusing_changes_neither_the_model_nor_torchs_random_state"),
    Mutation("the rotation is written into the library", "FusedModules._with_our_rotation", "ordinary.__globals__ | {ROTARY: rotary}", "ordinary.__globals__.__ior__({ROTARY: rotary})", "test_fused.py::test_nothing_is_left_on_the_model_or_the_library_even_after_an_exception"),
    Mutation("gate and up of one product are swapped", "FusedModules._gated.forward", 'gate, up = parts["gate_up_proj"]', 'up, gate = parts["gate_up_proj"]', "test_fused.py::test_the_fused_modules_of_a_family_are_equal_to_the_last_bit"),
    Mutation("parts of heads are rotated as whole ones", "FusedModules._with_our_rotation.rotary", "or cos.shape != shape or sin.shape != shape)", ")", "test_fused.py::test_a_rotation_of_a_part_of_a_head_is_left_to_the_library"),
    Mutation("a norm's weight may have another dtype", "FusedModules._norm.forward", " and x.dtype == weight.dtype)", ")", "test_fused.py::test_unsuitable_inputs_run_the_modules_own_code"),
    Mutation("a norm forgets what else it is given", "_one_argument", "if len(args) == 1 and not named:\n            return forward(*args)", "if args:\n            return forward(*args[:1])", "test_fused.py::test_a_norm_with_further_arguments_runs_its_own_code"),
    Mutation("fused modules lose their gradients", "FusedModules._fits", "if torch.is_grad_enabled():", "if False:", "test_fused.py::test_a_norm_that_needs_gradients_runs_its_own_code"),
    Mutation("kernels may compute anything", "fused_modules:differences", "tolerance = max(", "tolerance = 1e9 * max(", "test_fused.py::test_kernels_that_compute_something_else_are_named"),
    Mutation("kernels are tried on every device", "fused_modules:kernels_for", 'if device.type != "cuda":', "if not device.type:", "test_fused.py::test_the_reason_against_fusing_without_a_gpu_is_given"),
)
