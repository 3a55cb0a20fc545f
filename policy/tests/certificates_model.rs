//! Certificates under changing authorities: each certificate in use is trusted by every client that has read the
//! published authorities within the spread.

use std::collections::VecDeque;

use policy::certificates::{Authorities, Step, Validity, next_step};
use testing::Random;

/// An authority, identified by a number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Authority {
    number: u32,
    validity: Validity,
}

#[derive(Debug, Default)]
struct World {
    current: Option<Authority>,
    next: Option<(Authority, i64)>,
    previous: Option<Authority>,
    made: u32,
}

impl World {
    fn make(&mut self, now: i64, life: i64) -> Authority {
        self.made += 1;
        let validity = Validity {
            begin: now,
            end: now + life,
        };
        Authority {
            number: self.made,
            validity,
        }
    }

    fn view(&self) -> Authorities {
        Authorities {
            current: self.current.map(|it| it.validity),
            next: self.next.map(|(it, published)| (it.validity, published)),
            previous: self.previous.map(|it| it.validity),
        }
    }

    fn bundle(&self) -> Vec<u32> {
        let next = self.next.map(|(it, _)| it);
        let all = [self.current, next, self.previous];
        all.into_iter().flatten().map(|it| it.number).collect()
    }

    fn take(&mut self, now: i64, life: i64, spread: i64) {
        for _ in 0..8 {
            match next_step(now, &self.view(), spread) {
                Step::Create => self.current = Some(self.make(now, life)),
                Step::Publish => self.next = Some((self.make(now, life), now)),
                Step::Promote => {
                    self.previous = self.current;
                    self.current = self.next.take().map(|(it, _)| it);
                }
                Step::Drop => self.previous = None,
                Step::Rest(until) => {
                    assert!(until > now, "rests until {until} at {now}");
                    return;
                }
            }
        }
        panic!("no rest at {now}: {:?}", self.view());
    }
}

#[test]
fn certificates_in_use_are_trusted_by_all_clients_that_read_in_time() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let spread = 1 + i64::from(random.below_u32(100));
        // Shorter lives are refused by the program's options.
        let life = spread * (9 + i64::from(random.below_u32(20)));
        let pair_life = (life / 4).max(3);
        let mut world = World::default();
        let mut now = 0;
        // Published bundles, each with its second: a verifying client may be one spread behind.
        let mut published: VecDeque<(i64, Vec<u32>)> = VecDeque::new();
        let mut pair: Option<(u32, Validity)> = None;
        for _ in 0..600 {
            now += i64::from(random.below_u32(u32::try_from(spread).unwrap()) / 2 + 1);
            world.take(now, life, spread);
            published.push_back((now, world.bundle()));
            while published.len() > 1 && published[1].0 <= now - spread {
                published.pop_front();
            }
            let signer = world.current.unwrap();
            let is_usable = |(by, validity): (u32, Validity)| {
                !validity.is_due(now) && world.bundle().contains(&by)
            };
            if !pair.is_some_and(is_usable) {
                let end = (now + pair_life).min(signer.validity.end);
                pair = Some((signer.number, Validity { begin: now, end }));
            }
            let (by, validity) = pair.unwrap();
            assert!(now < validity.end, "seed {seed}: over at {now}");
            // The first authority is unknown before its creation: no certificate was in use then.
            for (at, bundle) in &published {
                let is_first = signer.number == 1;
                assert!(
                    is_first || bundle.contains(&by),
                    "seed {seed}: at {now}, {by} is not in what was published at {at}: {bundle:?}"
                );
            }
        }
        assert!(world.made > 2, "seed {seed}: nothing was renewed");
    }
}
