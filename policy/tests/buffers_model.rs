//! Random bodies and readers under [`policy::buffers::Bounds`].

use policy::buffers::Bounds;
use proptest::prelude::*;

const PIECE_MAX: usize = 64;
const LEAST: usize = 16;

const fn bounds(each: usize, all: usize) -> Bounds {
    Bounds {
        each,
        all,
        piece: PIECE_MAX,
        least: LEAST,
    }
}

/// An event of one body.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A piece of this many bytes arrives for the reader of the body.
    Offer(usize),
    /// The reader of the body takes the oldest piece.
    Take,
}

fn steps(bodies: usize) -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![(1..=PIECE_MAX).prop_map(Step::Offer), Just(Step::Take)];
    prop::collection::vec((0..bodies, step), 0..400)
}

proptest! {
    /// A source reads one piece ahead of its body, as large as allowed at the time of the read.
    #[test]
    fn no_body_and_no_sum_exceeds_its_bound_by_more_than_its_pieces(
        each in 1_usize..200,
        all in 1_usize..400,
        steps in steps(8),
    ) {
        let bounds = bounds(each, all);
        let mut bodies = vec![Vec::new(); 8];
        let mut ahead = [None; 8];
        for (body, step) in steps {
            let held = |bodies: &[Vec<usize>], body: usize| bodies[body].iter().sum::<usize>();
            let sum: usize = bodies.iter().flatten().sum();
            match step {
                Step::Offer(bytes) => {
                    if bounds.may_take(held(&bodies, body), sum) {
                        bodies[body].extend(ahead[body].take());
                    }
                    let own = held(&bodies, body);
                    let sum: usize = bodies.iter().flatten().sum();
                    ahead[body] = ahead[body].or_else(|| Some(bytes.min(bounds.piece_max(own, sum))));
                }
                Step::Take => {
                    if !bodies[body].is_empty() {
                        bodies[body].remove(0);
                    }
                }
            }
            for (body, ahead) in ahead.iter().enumerate() {
                let own = held(&bodies, body);
                prop_assert!(own <= PIECE_MAX.max(each + LEAST));
                let both = (each + 2 * LEAST).max(PIECE_MAX + LEAST);
                prop_assert!(own + ahead.unwrap_or(0) <= both);
            }
            let sum: usize = bodies.iter().flatten().sum();
            prop_assert!(sum < all + bodies.len() * PIECE_MAX);
        }
    }
}

#[test]
fn a_body_that_holds_something_or_has_no_room_gets_small_pieces() {
    let bounds = bounds(100, 1_000);
    assert_eq!(bounds.piece_max(0, 999), PIECE_MAX);
    assert_eq!(bounds.piece_max(1, 1), LEAST);
    assert_eq!(bounds.piece_max(0, 1_000), LEAST);
}

#[test]
fn the_rest_of_a_body_is_read_if_it_is_at_most_the_least_piece() {
    let bounds = bounds(1, 1_000);
    assert!(bounds.may_take_rest(LEAST as u64, 999));
    assert!(!bounds.may_take_rest(LEAST as u64 + 1, 999));
    assert!(!bounds.may_take_rest(1, 1_000));
}

#[test]
fn a_body_whose_reader_has_taken_all_is_read_whatever_others_hold() {
    let bounds = bounds(1, 1);
    assert!(bounds.may_take(0, usize::MAX));
    assert!(!bounds.may_take(1, 1));
}

#[test]
fn a_body_is_bounded_while_there_is_room_for_all() {
    let bounds = bounds(10, 100);
    assert!(bounds.may_take(9, 99));
    assert!(!bounds.may_take(10, 10));
    assert!(!bounds.may_take(9, 100));
}

#[test]
fn reserved_bytes_never_exceed_the_bound_of_all() {
    let bounds = bounds(10, 100);
    assert!(bounds.may_reserve(40, 60));
    assert!(!bounds.may_reserve(41, 60));
    assert!(!bounds.may_reserve(usize::MAX, usize::MAX));
}
