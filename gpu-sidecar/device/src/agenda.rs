//! The next event time of each of a fixed number of sources, and the earliest of them.

use crate::Time;

/// Binary tree in which every node holds the smaller of its two children: the earliest time is at the root, and an update climbs
/// one path.
#[derive(Clone, Debug)]
pub(crate) struct Agenda {
    /// Root at index 1, children of `n` at `2n` and `2n + 1`, one leaf per source in the second half.
    times: Vec<Time>,
    leaves: usize,
}

impl Agenda {
    /// Creates an agenda for `count` sources without events.
    pub(crate) fn new(count: usize) -> Self {
        let leaves = count.next_power_of_two();
        Self {
            times: vec![Time::NEVER; 2 * leaves],
            leaves,
        }
    }

    /// Returns the earliest event time; [`Time::NEVER`] if there is no event.
    pub(crate) fn first(&self) -> Time {
        self.times[1]
    }

    /// Returns the source of the earliest event; the lowest index among equal times.
    pub(crate) fn first_of(&self) -> usize {
        let mut at = 1;
        while at < self.leaves {
            at *= 2;
            if self.times[at + 1] < self.times[at] {
                at += 1;
            }
        }
        at - self.leaves
    }

    /// Sets the next event time of a source.
    pub(crate) fn set(&mut self, source: usize, time: Time) {
        let mut at = self.leaves + source;
        self.times[at] = time;
        while at > 1 {
            at /= 2;
            let least = self.times[2 * at].min(self.times[2 * at + 1]);
            if self.times[at] == least {
                return;
            }
            self.times[at] = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_event_is_first() {
        for count in 1..9 {
            let mut agenda = Agenda::new(count);
            let mut times = vec![Time::NEVER; count];
            for n in 0..200_u64 {
                let source = usize::try_from(n * 7 + n / 5).unwrap() % count;
                let time = Time(n * 37 % 23);
                agenda.set(source, time);
                times[source] = time;
                let first = (0..count).min_by_key(|&source| times[source]).unwrap();
                assert_eq!(agenda.first_of(), first);
                assert_eq!(agenda.first(), times[first]);
            }
        }
    }
}
