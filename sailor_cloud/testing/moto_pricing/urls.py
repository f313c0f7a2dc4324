"""Where the service is reached; the second form is how moto's server spells it."""

from sailor_cloud.testing.moto_pricing.responses import PricingResponse

url_bases = [r"https?://api\.pricing\.(.+)\.amazonaws\.com", r"https?://pricing\.(.+)\.amazonaws\.com"]
url_paths = {"{0}/$": PricingResponse.dispatch}
