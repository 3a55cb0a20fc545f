//! Cost of a queue operation. Target (docs/spec/targets.md): push plus pop at depth 10,000 within 300 ns.

use divan::{Bencher, black_box};
use policy::gate::{Action, Admission, Arrival, Gate, Late, Order, Settings};
use policy::profile::{ClassId, Profile};
use policy::queue::{DeadlineQueue, Waiting};
use policy::{RequestId, Span, Time};

fn main() {
    divan::main();
}

fn waiting(n: u64) -> Waiting {
    // Keys spread by a multiplicative hash: neither sorted nor reversed.
    let key = Time(1 << 40).after(Span(n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24));
    Waiting {
        id: RequestId(n),
        arrival: Time(n),
        key,
        objective: Span(1),
        kept: false,
    }
}

#[divan::bench(args = [10, 1_000, 10_000])]
fn push_and_pop(bencher: Bencher<'_, '_>, depth: u64) {
    let mut queue = DeadlineQueue::new(usize::try_from(depth).expect("small") + 1);
    for n in 0..depth {
        queue.push(Time(0), waiting(n)).expect("room for depth");
    }
    let mut n = depth;
    bencher.bench_local(|| {
        n += 1;
        queue
            .push(Time(0), waiting(black_box(n)))
            .expect("room for one more");
        queue.pop(Time(0))
    });
}

#[divan::bench(args = [10, 10_000])]
fn push_and_cancel(bencher: Bencher<'_, '_>, depth: u64) {
    let mut queue = DeadlineQueue::new(usize::try_from(depth).expect("small") + 1);
    for n in 0..depth {
        queue.push(Time(0), waiting(n)).expect("room for depth");
    }
    let mut n = depth;
    bencher.bench_local(|| {
        n += 1;
        let ticket = queue
            .push(Time(0), waiting(black_box(n)))
            .expect("room for one more");
        queue.cancel(ticket)
    });
}

#[divan::bench]
fn arrive_and_depart_when_nothing_waits(bencher: Bencher<'_, '_>) {
    let mut gate = Gate::new(Settings {
        concurrency: 1,
        depth: 10,
        order: Order::Deadline,
        late: Late::Shed,
    });
    let mut actions: Vec<Action> = Vec::new();
    let mut n = 0;
    bencher.bench_local(|| {
        n += 1;
        let at = Time(black_box(n));
        let arrival = Arrival {
            id: RequestId(n),
            at,
            key: at,
            objective: Span(1),
            kept: false,
        };
        let admission = gate.arrive(at, arrival, &mut actions);
        assert!(matches!(admission, Admission::Dispatch(_)));
        gate.depart(at, &mut actions);
    });
}

#[divan::bench]
fn observe_and_estimate(bencher: Bencher<'_, '_>) {
    let mut profile = Profile::new(64, Span::ZERO);
    let mut n = 0_u64;
    bencher.bench_local(|| {
        n += 1;
        let class = ClassId(u16::try_from(n % 64).expect("small"));
        profile.observe(class, Span(black_box(n % 1_000 * 1_000)));
        profile.estimate(class)
    });
}
