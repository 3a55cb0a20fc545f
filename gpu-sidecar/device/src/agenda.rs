//! When each of a fixed number of things has its next event, and which of them is first.

use crate::Time;

/// A tree whose every node holds the least of the two below it: the first is at its root, a change climbs one path.
#[derive(Clone, Debug)]
pub(crate) struct Agenda {
    /// The root at 1, the two below `n` at `2n` and `2n + 1`, the things themselves in the second half.
    times: Vec<Time>,
    leaves: usize,
}

impl Agenda {
    /// So many things, none of which has an event to come.
    pub(crate) fn new(things: usize) -> Self {
        let leaves = things.next_power_of_two();
        Self {
            times: vec![Time::NEVER; 2 * leaves],
            leaves,
        }
    }

    /// The time of the first event; [`Time::NEVER`] if there is none.
    pub(crate) fn first(&self) -> Time {
        self.times[1]
    }

    /// Whose event is the first; of several at one time, that of the lowest number.
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

    /// The next event of a thing.
    pub(crate) fn set(&mut self, thing: usize, time: Time) {
        let mut at = self.leaves + thing;
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
    fn the_first_is_the_first() {
        for things in 1..9 {
            let mut agenda = Agenda::new(things);
            let mut times = vec![Time::NEVER; things];
            for n in 0..200_u64 {
                let thing = usize::try_from(n * 7 + n / 5).unwrap() % things;
                let time = Time(n * 37 % 23);
                agenda.set(thing, time);
                times[thing] = time;
                let first = (0..things).min_by_key(|&thing| times[thing]).unwrap();
                assert_eq!(agenda.first_of(), first);
                assert_eq!(agenda.first(), times[first]);
            }
        }
    }
}
