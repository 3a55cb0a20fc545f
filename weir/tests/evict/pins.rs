//! Which models' host memory is registered with the driver, where it is not enough for all.

use super::*;

/// Starts a program in `pod` and then one in a pod `other`, and returns them with the sums of their memory.
fn two_programs(node: &Node) -> [(Puppet, Vec<u64>); 2] {
    node.pod("other", SHARED, "");
    let mut first = program(node);
    let sums_of_first = filled(&mut first);
    ready(node);
    let mut second = program_in(node, "other");
    let sums_of_second = filled(&mut second);
    [(first, sums_of_first), (second, sums_of_second)]
}

/// Evicts and restores the model of a pod. The host memory, or another part of it, may be on its way: an order before is refused.
fn cycle(node: &Node, pod: &str) {
    let order = |verb: &str| node.post(&format!("/v1/instances/{pod}:{verb}?wait=true"), "");
    let mut evicted = (0, Value::Null);
    until("there is host memory for the model", || {
        evicted = order("evict");
        evicted.1["reason"] != "no-memory"
    });
    assert_eq!(evicted.0, 200, "{}", evicted.1);
    let (status, answer) = order("restore");
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn registered_host_memory_goes_from_a_model_that_stays_to_one_that_comes_and_goes() {
    let node = node("pinned-memory = \"48Mi\"\nstaging = \"0\"\n[memory]\nseal-after = \"0\"\n");
    let [(mut first, sums_of_first), (mut second, sums_of_second)] = two_programs(&node);
    let pinned = |pod: &str| {
        let own = node.instance(pod)["processes"][0].clone();
        let number = |key: &str| own[key].as_u64().unwrap_or(0);
        (number("pinned_bytes"), number("host_bytes"))
    };
    until("both have host memory", || {
        pinned("other").1 >= SIZES.iter().sum()
    });
    let is_pinned = |pod: &str| {
        let (pinned, held) = pinned(pod);
        pinned == held
    };
    assert!(is_pinned("pod") && !is_pinned("other"));
    cycle(&node, "other");
    cycle(&node, "other");
    until("its host memory is registered", || {
        is_pinned("other") && pinned("pod").0 == 0
    });
    cycle(&node, "other");
    cycle(&node, "pod");
    assert_eq!(sums(&mut first), sums_of_first);
    assert_eq!(sums(&mut second), sums_of_second);
}

#[test]
fn a_model_that_may_not_be_registered_returns_through_staging_memory() {
    let node = node("pinned-memory = \"64Mi\"\nstaging = \"16Mi\"\n[memory]\nseal-after = \"0\"\n");
    let [(mut first, sums_of_first), (mut second, sums_of_second)] = two_programs(&node);
    let number = |key: &str| {
        let own = node.instance("other")["processes"][0].clone();
        own[key].as_u64().unwrap_or(0)
    };
    until("it has host memory", || {
        number("host_bytes") >= SIZES.iter().sum()
    });
    // Beside a window that came while there was room.
    until("it has staging memory, and less than its model", || {
        (16 << 20..number("host_bytes")).contains(&number("pinned_bytes"))
    });
    for _ in 0..3 {
        cycle(&node, "other");
        assert_eq!(sums(&mut second), sums_of_second);
    }
    cycle(&node, "pod");
    assert_eq!(sums(&mut first), sums_of_first);
}
