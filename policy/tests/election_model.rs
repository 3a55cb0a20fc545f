//! Several processes, one lease: two never lead at the same time, and there is a leader again soon after one has ended.

use policy::election::{Election, Holder, Record, Terms, Verdict};
use policy::{Span, Time};

use testing::Random;

struct Process {
    election: Election,
    /// Time until which the process is absent: stopped, or cut off from the API.
    absent_until: Time,
    looks_at: Time,
    /// Offset of the process's own clock in nanoseconds.
    skew: u64,
}

#[derive(Default)]
struct Lease {
    holder: Option<usize>,
    version: u64,
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut lease = Lease::default();
    let mut processes: Vec<_> = (0..3)
        .map(|_| Process {
            election: Election::default(),
            absent_until: Time::ZERO,
            looks_at: Time::ZERO,
            skew: random.below(1 << 40),
        })
        .collect();
    let mut now = Time::ZERO;
    let mut led_at = Time::ZERO;
    for _ in 0..4_000 {
        now = now.after(Span(random.below(400_000_000)));
        let number = random.index(processes.len());
        if random.below(200) == 0 {
            let absent = Span::from_millis(random.below(40_000));
            processes[number].absent_until = now.after(absent);
        }
        if random.below(400) == 0 {
            // The process ends, and another one starts under the same name.
            processes[number].election = Election::default();
        }
        let process = &mut processes[number];
        if now >= process.absent_until && now >= process.looks_at {
            let own = now.after(Span(process.skew));
            let record = Record {
                holder: match lease.holder {
                    None => Holder::Vacant,
                    Some(holder) if holder == number => Holder::Own,
                    Some(_) => Holder::Other,
                },
                version: lease.version,
                duration: Terms::default().lease,
            };
            process.looks_at = now.after(Terms::default().retry);
            match process.election.evaluate(own, &record) {
                Verdict::Acquire | Verdict::Renew => {
                    // Some writes fail.
                    if random.below(10) > 0 {
                        lease.holder = Some(number);
                        lease.version += 1;
                        process.election.wrote(own, lease.version);
                    }
                }
                Verdict::Follow(until) => {
                    assert!(until > own && until <= own.after(Terms::default().retry));
                }
                Verdict::Lost => process.election = Election::default(),
            }
        }
        let leaders = processes
            .iter()
            .filter(|process| process.election.leads(now.after(Span(process.skew))));
        let leaders = leaders.count();
        assert!(leaders <= 1, "{leaders} lead at {now:?}, seed {seed}");
        let all_absent = processes.iter().all(|process| now < process.absent_until);
        if leaders == 1 || all_absent {
            led_at = now;
        }
        // The bound: a lease, a look every 2 s by a random present process, and failed writes.
        let silence = now.since(led_at);
        assert!(
            silence < Span::from_secs(90),
            "no process leads for {silence:?}, seed {seed}"
        );
    }
}

#[test]
fn two_never_lead_and_a_leader_is_never_missing_for_long() {
    for seed in 0..300 {
        run(seed);
    }
}

#[test]
fn a_leader_that_cannot_renew_stops_before_another_may_lead() {
    let mut leader = Election::default();
    let empty = Record {
        holder: Holder::Vacant,
        version: 0,
        duration: Terms::default().lease,
    };
    assert_eq!(leader.evaluate(Time::ZERO, &empty), Verdict::Acquire);
    leader.wrote(Time::ZERO, 1);
    let mut follower = Election::default();
    let taken = Record {
        holder: Holder::Other,
        version: 1,
        duration: Terms::default().lease,
    };
    let second = |n: u64| Time(n * 1_000_000_000);
    assert!(matches!(
        follower.evaluate(second(0), &taken),
        Verdict::Follow(_)
    ));
    assert!(leader.leads(second(9)));
    assert!(!leader.leads(second(10)));
    let own = Record {
        holder: Holder::Own,
        ..taken
    };
    assert_eq!(leader.evaluate(second(10), &own), Verdict::Lost);
    assert!(matches!(
        follower.evaluate(second(14), &taken),
        Verdict::Follow(_)
    ));
    assert_eq!(follower.evaluate(second(15), &taken), Verdict::Acquire);
}

#[test]
fn a_renewed_lease_never_expires() {
    let mut follower = Election::default();
    for n in 0..100 {
        let record = Record {
            holder: Holder::Other,
            version: n,
            duration: Terms::default().lease,
        };
        let now = Time(n * 14_000_000_000);
        assert!(matches!(
            follower.evaluate(now, &record),
            Verdict::Follow(_)
        ));
    }
}
