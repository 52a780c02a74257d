//! The model of the router and the requests that change it.
