//! Sound: no model that hears is built yet, so what needs one is refused.

use std::sync::Arc;

use axum::response::Response;

use crate::app::App;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult, Kind};

/// `POST /v1/audio/transcriptions`.
pub async fn transcriptions(_: Arc<App>, _: Call) -> ApiResult<Response> {
    Err(no_hearing())
}

/// The error of an endpoint that takes sound.
pub fn no_hearing() -> ApiError {
    ApiError::new(Kind::NotSupported, "this model does not hear: sound cannot be transcribed")
}
