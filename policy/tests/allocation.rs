//! A warm gate and profile allocate nothing per request, as counted by this test's own allocator.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::gate::{Action, Admission, Arrival, Gate, Late, Order, Settings};
use policy::profile::{ClassId, Profile};
use policy::{RequestId, Span, Time};

/// Keeps the gate full, over full and half empty. Returns the number of dispatched requests.
fn work(gate: &mut Gate, profile: &mut Profile, actions: &mut Vec<Action>, from: u64) -> u64 {
    let mut dispatched = 0;
    let mut last_ticket = None;
    for n in from..from + 20_000 {
        let now = Time(n * 1_000);
        let class = ClassId(u16::try_from(n % 8).unwrap());
        let spread = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let arrival = Arrival {
            id: RequestId(n),
            at: now,
            key: now.after(Span(spread)).before(profile.estimate(class)),
            objective: Span(spread),
            kept: false,
        };
        match gate.arrive(now, arrival, actions) {
            Admission::Dispatch(_) => dispatched += 1,
            Admission::Wait(ticket) => last_ticket = Some(ticket),
            Admission::Refuse(_) => {}
        }
        if n % 3 == 0 {
            gate.depart(now, actions);
            profile.observe(class, Span(spread));
        }
        if n % 11 == 0
            && let Some(ticket) = last_ticket.take()
        {
            gate.cancel(ticket);
        }
        dispatched += actions
            .iter()
            .filter(|a| matches!(a, Action::Dispatch { .. }))
            .count() as u64;
        actions.clear();
    }
    dispatched
}

#[test]
fn a_warm_gate_and_profile_allocate_nothing() {
    for late in [Late::Serve, Late::Shed] {
        let settings = Settings {
            concurrency: 4,
            depth: 1_000,
            order: Order::Deadline,
            late,
        };
        let mut gate = Gate::new(settings);
        let mut profile = Profile::new(8, Span::ZERO);
        let mut actions = Vec::new();
        work(&mut gate, &mut profile, &mut actions, 0);
        let counted = allocation_counter::measure(|| {
            assert!(work(&mut gate, &mut profile, &mut actions, 20_000) > 1_000);
        });
        assert_eq!(counted.count_total, 0, "{late:?}: {counted:?}");
    }
}
