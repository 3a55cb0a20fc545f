//! Another shape where the wanted one fits nowhere (papers 4.3): before a GPU is asked for, the shapes of the
//! function are tried in the order of what they serve for what they take.

use super::profile::{Point, Points};
use crate::rectangles::{FunctionId, InstanceId, Placement, Rectangles, Refusal};

/// Places a pod of the wanted shape, else of the most efficient shape that fits. Answers the shape and the
/// place. If it serves less than the wanted one, the gap that is left shows in the next decision of the
/// [`super::Scaler`]. O(points) searches.
///
/// # Errors
/// Why the wanted shape has no place, if none has: a new GPU is required. Or why no shape can be placed:
/// [`Refusal::InstanceTaken`], [`Refusal::IdTooLarge`].
pub fn place(
    packer: &mut Rectangles,
    instance: InstanceId,
    function: FunctionId,
    wanted: &Point,
    points: &Points,
) -> Result<(Point, Placement), Refusal> {
    let refused = match packer.place(instance, &wanted.pod(function)) {
        Ok(placement) => return Ok((*wanted, placement)),
        Err(refused @ (Refusal::NoArea | Refusal::NoMemory | Refusal::SmOutOfRange { .. })) => {
            refused
        }
        Err(refused) => return Err(refused),
    };
    (points.all().iter())
        .filter(|&point| point != wanted)
        .find_map(|point| {
            let placement = packer.place(instance, &point.pod(function)).ok()?;
            Some((*point, placement))
        })
        .ok_or(refused)
}
