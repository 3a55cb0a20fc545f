//! Falls back to another shape where the wanted one has no place (mechanisms §4.3): before a GPU is requested, the shapes of
//! the function are tried in order of efficiency.

use super::profile::{Point, Points};
use crate::rectangles::{FunctionId, InstanceId, Placement, Rectangles, Refusal};

/// Places a pod of the wanted shape, or otherwise of the most efficient shape that fits, and returns the shape and the
/// place. If the shape serves less than the wanted one, the next decision of the [`super::Scaler`] covers the remaining
/// gap. O(points) searches.
///
/// # Errors
/// Returns why the wanted shape has no place if no shape has one: a new GPU is required. Returns
/// [`Refusal::InstanceTaken`] or [`Refusal::IdTooLarge`] if no shape can be placed at all.
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
