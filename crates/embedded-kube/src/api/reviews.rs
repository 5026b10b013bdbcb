//! Questions that are answered at once and never stored.

use http::Response;

use super::body::Body;
use super::errors::{Result, Status};
use super::rest::Call;

pub(crate) async fn serve(_call: &Call, _verb: &str) -> Result<Response<Body>> {
    Err(Status::method_not_allowed())
}
