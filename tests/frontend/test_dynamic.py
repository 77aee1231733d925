

def test_truth_of_a_number_is_guarded():
    fast, _ = compiled(lambda x, k: x + 1 if k else x - 1)
    x = torch.zeros(2)
    for k in (3, 5, 0, 7, 0, -2, 1, True, False):
        assert torch.equal(fast(x, k), x + 1 if k else x - 1)
