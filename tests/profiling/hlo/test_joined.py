from nightjar_profiling.hlo.joined import Site, Stack, join_stacks

MAIN = Site("a.py", 30, "main", 1, 9)
STEP = Site("a.py", 20, "step", 5, 30)
SCAN = Site("a.py", 10, "run", 5, 40)
LAYER = Site("a.py", 5, "layer", 8, 20)
BLOCK = Site("a.py", 3, "block", 8, 20)
AGAIN = Site("a.py", 5, "layer", 12, 19)  # a call of itself in the same line
CALL = (MAIN, STEP, SCAN)
LOOP = (*CALL, STEP, SCAN)
BODY = (*LOOP, STEP, SCAN)


def join(operations: dict[str, Stack]) -> dict[str, Stack]:
    return {name: stack for (name, _), stack in join_stacks(operations.items()).items()}


def test_a_scan_is_called_once() -> None:
    found = join(
        {
            "jit(step)/while": LOOP,
            "jit(step)/while/body/add": BODY,
            "jit(step)/while/body/jit(dynamic_index_in_dim)/dynamic_slice": (*BODY, STEP, SCAN),
            "jit(step)/while/body/closed_call/dot_general": (*BODY, LAYER, BLOCK),
        }
    )
    assert list(found.values()) == [CALL, CALL, CALL, (*CALL, LAYER, BLOCK)]


def test_a_function_that_calls_itself_keeps_its_calls() -> None:
    stack = (*BODY, AGAIN, AGAIN, AGAIN, LAYER)
    found = join({"jit(step)/while": LOOP, "jit(step)/while/body/closed_call/sin": stack})
    assert found["jit(step)/while/body/closed_call/sin"] == (*CALL, AGAIN, AGAIN, AGAIN, LAYER)


def test_the_body_of_a_loop_of_one_round_needs_no_loop() -> None:
    assert join({"jit(step)/while/body/closed_call/sin": (*BODY, LAYER)}) == {
        "jit(step)/while/body/closed_call/sin": (*CALL, LAYER)
    }


def test_slices_with_the_calls_of_another_scan_are_those_of_their_loop() -> None:
    other = (*BODY, Site("b.py", 7, "other", 1, 9), SCAN)
    name = "jit(step)/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice"
    assert join({"jit(step)/while": LOOP, name: other})[name] == CALL
    of_program = "jit(step)/while/body/jit(dynamic_index_in_dim)/dynamic_slice"  # in the body of a while_loop
    assert join({"jit(step)/while": CALL, of_program: (*CALL, LAYER)})[of_program] == (*CALL, LAYER)


def test_a_function_that_is_called_directly_and_by_another_one_keeps_both_ways() -> None:
    stacks = {"jit(step)/dot": (MAIN, STEP, LAYER), "jit(step)/mul": (MAIN, STEP, BLOCK, LAYER)}  # nnx.Sequential
    assert join(stacks) == stacks
    again = {f"checkpoint/{name}": stack for name, stack in stacks.items()}
    assert join(stacks | again) == stacks | again


def test_the_calls_between_are_added_if_there_is_one_way() -> None:
    forward, backward = (MAIN, STEP, BLOCK), (MAIN, STEP, LAYER, BLOCK)
    assert set(join({"jvp()/sin": forward, "checkpoint/cos": backward}).values()) == {backward}
    other_line = (MAIN, STEP, LAYER._replace(line=6), BLOCK)
    two_ways = {"jvp()/sin": forward, "checkpoint/cos": backward, "checkpoint/mul": other_line}
    assert join(two_ways) == two_ways
    without_columns = {
        name: tuple(Site(*site[:3]) for site in stack)
        for name, stack in {"jvp()/sin": forward, "checkpoint/cos": backward}.items()
    }
    assert join(without_columns) == without_columns
