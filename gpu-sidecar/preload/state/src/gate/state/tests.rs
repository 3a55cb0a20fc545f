use super::*;

fn open_orders() -> Orders {
    let orders = Orders::new();
    orders.gate.set(2);
    orders
}

fn give_back(gate: &Gate, orders: &Orders) -> Option<u64> {
    let begun = gate.begin_give_back(orders)?;
    gate.finish_give_back(begun, false)
}

#[test]
fn a_launch_passes_an_open_gate_below_the_bound() {
    let (gate, orders) = (Gate::new(), open_orders());
    orders.inflight_us_max.store(10, Ordering::Relaxed);
    assert!(gate.may_launch(&orders, true));
    gate.word().add(10_000);
    assert!(!gate.may_launch(&orders, true));
    assert!(gate.may_launch(&orders, false), "it may exceed the bound");
    orders.gate.set(3);
    assert!(!gate.may_launch(&orders, false));
}

#[test]
fn an_announced_launch_counts_before_it_passes() {
    let (gate, orders) = (Gate::new(), open_orders());
    orders.inflight_us_max.store(10, Ordering::Relaxed);
    let before = gate.announce(50_000);
    assert_eq!((before, gate.word().in_flight()), (0, 50_000));
    assert!(gate.begin_give_back(&orders).is_none(), "it is in flight");
    assert!(gate.passes(&orders, before, true), "it is the first");
    let before = gate.announce(1);
    assert!(!gate.passes(&orders, before, true));
    assert!(gate.passes(&orders, before, false));
    orders.gate.set(3);
    assert!(!gate.passes(&orders, before, false));
}

#[test]
fn an_announced_launch_does_not_pass_a_returned_token() {
    let (gate, orders) = (Gate::new(), open_orders());
    let begun = gate.begin_give_back(&orders).unwrap();
    let before = gate.announce(5);
    assert!(!gate.passes(&orders, before, true));
    assert_eq!(gate.finish_give_back(begun, true), None, "it is kept");
    assert!(gate.passes(&orders, before, true));
}

#[test]
fn no_launch_passes_a_shut_gate_whatever_its_bound() {
    let (gate, orders) = (Gate::new(), open_orders());
    orders.inflight_us_max.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(give_back(&gate, &orders), Some(2));
    assert!(!gate.may_launch(&orders, true));
    assert!(!gate.may_launch(&orders, false));
}

#[test]
fn a_token_is_returned_only_while_nothing_is_in_flight() {
    let (gate, orders) = (Gate::new(), open_orders());
    gate.word().add(1);
    assert_eq!(gate.begin_give_back(&orders), None);
    assert!(!gate.is_given_back());
    gate.word().subtract(1);
    assert_eq!(give_back(&gate, &orders), Some(2));
    assert!(gate.is_given_back() && gate.was_given_back(2));
    assert!(!gate.was_given_back(4));
}

#[test]
fn a_closed_gate_has_no_token_to_return() {
    let (gate, orders) = (Gate::new(), Orders::new());
    assert_eq!(gate.begin_give_back(&orders), None);
}

#[test]
fn a_token_is_returned_once() {
    let (gate, orders) = (Gate::new(), open_orders());
    assert_eq!(give_back(&gate, &orders), Some(2));
    assert_eq!(gate.begin_give_back(&orders), None);
}

#[test]
fn a_launch_that_came_first_keeps_the_token() {
    let (gate, orders) = (Gate::new(), open_orders());
    let begun = gate.begin_give_back(&orders).unwrap();
    assert_eq!(gate.finish_give_back(begun, true), None);
    assert!(gate.may_launch(&orders, true));
    let begun = gate.begin_give_back(&orders).unwrap();
    gate.word().add(5);
    assert_eq!(gate.finish_give_back(begun, false), None);
    assert!(gate.may_launch(&orders, true));
    assert!(!gate.was_given_back(2));
}

#[test]
fn a_reset_forgets_requested_and_returned_tokens() {
    let (gate, orders) = (Gate::new(), open_orders());
    assert_eq!(give_back(&gate, &orders), Some(2));
    assert!(gate.request(2) && !gate.request(2));
    gate.reset();
    assert!(!gate.is_given_back() && gate.may_launch(&orders, true));
    assert!(gate.request(2));
}

#[test]
fn each_token_is_requested_once() {
    let gate = Gate::new();
    assert!(gate.request(0) && !gate.request(0));
    assert!(gate.request(1) && !gate.request(1));
}

#[test]
fn only_a_later_token_opens_a_shut_word() {
    let (gate, orders) = (Gate::new(), open_orders());
    assert_eq!(gate.token(&orders), Token::Held);
    assert_eq!(give_back(&gate, &orders), Some(2));
    for epoch in [2, 3] {
        orders.gate.set(epoch);
        assert_eq!(gate.token(&orders), Token::Returned);
        assert!(gate.is_given_back());
    }
    orders.gate.set(4);
    assert_eq!(gate.token(&orders), Token::Taken);
    assert!(!gate.is_given_back());
    assert_eq!(gate.token(&orders), Token::Held);
}

#[test]
fn a_return_that_may_be_undone_is_no_return_yet() {
    let (gate, orders) = (Gate::new(), open_orders());
    let begun = gate.begin_give_back(&orders).unwrap();
    // The agent ends the epoch by itself meanwhile.
    orders.gate.set(3);
    assert_eq!(gate.token(&orders), Token::Returning);
    assert!(!gate.is_given_back() && !gate.was_given_back(2));
    assert_eq!(gate.finish_give_back(begun, false), Some(2));
    assert!(gate.was_given_back(2));
}

#[test]
fn a_reset_ends_a_return() {
    let (gate, orders) = (Gate::new(), open_orders());
    let begun = gate.begin_give_back(&orders).unwrap();
    gate.reset();
    assert_eq!(gate.finish_give_back(begun, false), None);
    assert!(gate.may_launch(&orders, true));
}

#[test]
fn the_usual_gap_follows_the_gaps_by_a_quarter() {
    let (gate, orders) = (Gate::new(), open_orders());
    orders.contended.store(1, Ordering::Relaxed);
    let mut now = 1;
    // A gap of 1 ms raises the average to 250 µs, the next one to 437 µs.
    for expected in [false, true] {
        assert!(!gate.after_host_wait(now, &orders));
        now += 1_000_000;
        gate.begin_burst(now);
        assert_eq!(gate.usually_pauses(), expected);
    }
    assert!(gate.after_host_wait(now, &orders));
    // Short gaps lower it again.
    gate.begin_burst(now + 1_000);
    assert!(!gate.usually_pauses());
}

#[test]
fn a_gap_begins_with_the_first_wait_and_ends_with_the_first_launch() {
    let (gate, orders) = (Gate::new(), open_orders());
    assert!(!gate.after_host_wait(1_000, &orders));
    assert!(!gate.after_host_wait(5_000, &orders));
    gate.begin_burst(4_001_000);
    assert_eq!(gate.usual_gap.load(Ordering::Relaxed), 1_000_000);
    gate.begin_burst(90_000_000);
    assert_eq!(gate.usual_gap.load(Ordering::Relaxed), 1_000_000);
}

#[test]
fn a_gap_of_days_counts_as_minutes() {
    let (gate, orders) = (Gate::new(), open_orders());
    assert!(!gate.after_host_wait(1, &orders));
    gate.begin_burst(u64::MAX);
    assert_eq!(gate.usual_gap.load(Ordering::Relaxed), GAP_MAX / 4);
}

#[test]
fn a_wait_returns_the_token_only_if_others_wait_and_nothing_is_in_flight() {
    let (gate, orders) = (Gate::new(), open_orders());
    gate.usual_gap.store(SHORT_GAP, Ordering::Relaxed);
    assert!(!gate.after_host_wait(1, &orders), "no process waits");
    orders.contended.store(1, Ordering::Relaxed);
    assert!(gate.after_host_wait(1, &orders));
    gate.word().add(1);
    assert!(!gate.after_host_wait(1, &orders));
}
